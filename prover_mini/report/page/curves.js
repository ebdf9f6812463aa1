// Which curves a run has. One run: colours tell quantities apart. Several: colours tell runs apart, dashes quantities.

const PHASES = {
  rollout: "var(--blue)",
  judge: "var(--purple)",
  verify: "var(--orange)",
  train: "var(--green)",
  eval: "var(--grey)",
  save: "var(--faint)",
};

const rate = { min: 0, max: 1, format: (v) => fixed(v, 2) };
const share = { min: 0, format: (v) => percent(v, 0) };

function column(run, name) {
  return run.curves.step.map((step, i) => [step, run.curves[name][i] ?? NaN]);
}

function drawCurves(runs) {
  const many = runs.length > 1;
  const { window } = runs[0].curves;
  const recent = window > 1 ? `over the last ${window} steps` : "of each step";

  const chart = (title, note, y, ...quantities) => {
    // quantities: { label, color, dash, marks } with the name of a column, or with `points` and `band` of a run
    const series = runs.flatMap((run) =>
      quantities.map(({ name, points, band, ...q }) => ({
        ...q,
        label: many ? `${run.name}, ${q.label}` : q.label,
        color: many ? runColor(run) : q.color,
        key: { ...q, color: many ? "var(--quiet)" : q.color },
        points: points ? points(run) : column(run, name),
        band: band ? band(run) : [],
      })),
    );
    return lineChart({ title, note, y, series });
  };
  const single = (title, note, name, y = {}) =>
    chart(title, note, y, { label: title.toLowerCase(), color: "var(--blue)", name });

  const main = [
    chart(
      "Success",
      `Test panel with its 95 % interval; dashed: rollouts on training tasks ${recent}.`,
      rate,
      {
        label: "test panel",
        color: "var(--blue)",
        marks: true,
        points: (run) => run.evaluations.map((e) => [e.step, e.success]),
        band: (run) => run.evaluations.map((e) => [e.step, ...e.ci95]),
      },
      { label: "training", color: "var(--orange)", dash: true, name: "success_smooth" },
    ),
    chart(
      "Acceptance beside chance",
      `Share of verified segments with a delta above 0 ${recent}; dashed: what segments without any effect would reach.`,
      rate,
      { label: "accepted", color: "var(--blue)", name: "acceptance" },
      { label: "chance alone", color: "var(--grey)", dash: true, name: "chance" },
    ),
    histogram({
      title: "Delta of verified segments",
      note: "Success rate after the segment minus before it, over the whole run.",
      width: 1 / Math.min(...runs.map((run) => run.config.continuations || 8)),
      series: runs.map((run) => ({
        label: many ? run.name : "segments",
        color: many ? runColor(run) : "var(--gain)",
        values: run.deltas,
      })),
    }),
    chart(
      "Cost of verification",
      `Tokens of continuations per rollout token ${recent}; dashed: seconds of judge and verification per other second.`,
      share,
      { label: "tokens", color: "var(--blue)", name: "token_overhead" },
      { label: "seconds", color: "var(--orange)", dash: true, name: "time_overhead" },
    ),
    single(
      "Trainer against sampler",
      "Largest difference between their log-probs of one token, on a logarithmic scale.",
      "mismatch_max",
      { log: true, format: scientific },
    ),
    many ? phaseMeans(runs) : phaseBars(runs[0]),
  ];
  const more = [
    single("Mean reward", "Of the rollouts of each step.", "reward/mean"),
    single("Entropy", "Of the policy's next token, on the tokens that were trained on.", "entropy", { min: 0 }),
    single("Gradient norm", "Before it is scaled down.", "grad_norm", { min: 0 }),
    single("Policy loss", "Of each step.", "loss/policy"),
    single("Turns", "Mean number of turns of an episode.", "turns/mean", { min: 0 }),
    single("Groups without contrast", "Share whose trajectories all had the same reward.", "frac_zero_std", rate),
    single("Judge failures", "Proposals of each step that gave no usable answer.", "judge/failures", { min: 0 }),
    single("Invalid actions", "Share of turns.", "env/invalid_action_rate", share),
    single("Episodes cut short", "Share that the turn or context limit ended.", "env/truncated_rate", share),
  ];
  return el(
    "section",
    { id: "curves" },
    h2(null, "Learning curves"),
    many ? legend(runs.map((run) => ({ label: run.name, color: runColor(run) }))) : null,
    div("charts", ...main),
    el("details", { class: "more" }, el("summary", {}, "More curves"), div("charts", ...more)),
  );
}

function layers(run) {
  const layer = ([label, values]) => ({ label, values, color: PHASES[label] || "var(--grey)" });
  return Object.entries(run.curves.phases).map(layer);
}

function phaseBars(run) {
  const note = "Seconds of each step, of the slowest rank.";
  return stacked({ title: "Time per phase", note, steps: run.curves.step, layers: layers(run) });
}

function phaseMeans(runs) {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const means = runs.map((run) =>
    layers(run).map((l) => ({ ...l, mean: sum(l.values) / Math.max(l.values.length, 1) })),
  );
  const totals = means.map((parts) => sum(parts.map((l) => l.mean)));
  const longest = Math.max(...totals, 1e-9);
  const bar = (run, { label, color, mean }) => {
    const said = tipRow(label, `${fixed(mean)} s per step`, color);
    const onpointermove = (event) => showTip(event, div("tip-title", run.name), said);
    const style = { background: color, width: `${(100 * mean) / longest}%` };
    return el("i", { style, onpointermove, onpointerleave: hideTip });
  };
  const rows = runs.map((run, i) =>
    div(
      "phases",
      div("name", run.name, b(null, ` ${fixed(totals[i], 2)} s`)),
      div("bar-row", ...means[i].map((part) => bar(run, part))),
    ),
  );
  const keys = Object.entries(PHASES).map(([label, color]) => ({ label, color }));
  return framed("Time per phase", "Mean seconds per step, of the slowest rank.", keys, ...rows);
}
