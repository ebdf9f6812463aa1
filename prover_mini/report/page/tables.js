// The head of the report, what was run and what came out, and where runs differ.

const runColor = (run) => `var(--run${REPORT.runs.indexOf(run) % 8})`;

function drawHead(runs) {
  const many = runs.length > 1;
  const names = runs.map((run, i) => [span("and", i === 0 ? "" : i === runs.length - 1 ? " and " : ", "), run.name]);
  const links = [
    ["curves", "Learning curves"],
    ["credit", "Where credit went"],
    ["configuration", "Configuration"],
  ].map(([id, text]) => el("a", { href: `#${id}` }, text));
  return el(
    "header",
    {},
    p("eyebrow", "prover-mini · run report"),
    el("h1", {}, names),
    many ? null : p("lead", describe(runs[0])),
    el("nav", {}, links),
    many ? comparison(runs) : tiles(runs[0]),
  );
}

function describe({ config: c, figures, kept }) {
  const judge = figures.judge_calls ? `, judge ${c.judge}` : "";
  const method = `${c.credit}${judge}${c.budget_matched ? ", budget matched" : ""}`;
  const size = `${kept.steps} of ${c.steps} steps of ${c.groups_per_step} × ${c.group_size} trajectories`;
  return `${c.env} with the policy ${c.model}, credit ${method}; ${size}, seed ${c.seed}.`;
}

function outcomes(run) {
  // what sums a run up: { label, value, remark }
  const f = run.figures;
  const [before, after] = [run.evaluations[0], run.evaluations.at(-1)];
  const out = [];
  if (after) {
    const rates = [...new Set([before, after])].map((e) => fixed(e.success)).join(" → ");
    const interval = `95 % [${after.ci95.map((x) => fixed(x)).join(", ")}], n ${after.n}, step ${after.step}`;
    out.push({ label: "Success on the test panel", value: rates, remark: interval });
  }
  const accepted = f.verified
    ? { value: percent(f.acceptance), remark: `${f.accepted} of ${f.verified}; by chance alone ${percent(f.chance)}` }
    : { value: "–", remark: `none verified, ${f.proposed} proposed` };
  const tokens = `${grouped(f.continuation_tokens)} of ${grouped(f.rollout_tokens)} tokens`;
  out.push(
    { label: "Accepted of verified segments", ...accepted },
    {
      label: "Cost of verification",
      value: `+${percent(f.token_overhead)} tokens`,
      remark: `+${percent(f.time_overhead)} time; ${tokens}`,
    },
    {
      label: "Largest gap trainer – sampler",
      value: scientific(f.largest_gap),
      remark: "log-prob of one token, whole run",
    },
  );
  return out;
}

function tiles(run) {
  return div(
    "tiles",
    ...outcomes(run).map(({ label, value, remark }) =>
      div("tile", div("label", label), div("value", value), div("remark", remark)),
    ),
  );
}

function table(kind, head, rows) {
  // head: cells; rows: [row header, ...cells]
  const [column, name] = [el("thead", {}, el("tr", {}, head)), (text) => el("th", { scope: "row" }, text)];
  const body = rows.map(([first, ...cells]) => el("tr", {}, name(first), cells));
  return div("scroll", el("table", { class: kind }, column, el("tbody", {}, body)));
}

function comparison(runs) {
  const head = (run) =>
    el("th", { scope: "col" }, el("i", { class: "swatch", style: { background: runColor(run) } }), run.name);
  const sums = runs.map(outcomes);
  const summed = (label) => {
    const cells = sums.map((sum) => sum.find((row) => row.label === label));
    return [label, ...cells.map((cell) => td(null, cell ? [cell.value, small(null, cell.remark)] : "–"))];
  };
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const differs = (key) => new Set(runs.map((run) => JSON.stringify(run.config[key]))).size > 1;
  const text = (value) => (value === undefined ? "–" : value === "" ? "(empty)" : String(value));
  const field = (key) => [
    code(null, `--${key.replaceAll("_", "-")}`),
    ...runs.map((run) => td(null, code(null, text(run.config[key])))),
  ];
  return table(
    "comparison",
    [el("th"), ...runs.map(head)],
    [
      ["Steps", ...runs.map((run) => td(null, `${run.kept.steps} of ${run.config.steps}`))],
      ...[...new Set(sums.flat().map((row) => row.label))].map(summed),
      ...keys.filter((key) => key !== "run_dir" && differs(key)).map(field),
    ],
  );
}

function drawKinds(runs) {
  const kinds = [...new Set(runs.flatMap((run) => run.evaluations.flatMap((e) => Object.keys(e.kinds))))].sort();
  if (kinds.length < 2) return null;
  const number = (text) => el("th", { class: "number", scope: "col" }, text);
  const head = runs.flatMap((run) => {
    const before = runs.length > 1 ? `${run.name}, before` : "before";
    return [before, "after", "n"].map(number);
  });
  const cells = (kind) =>
    runs.flatMap(({ evaluations }) => {
      const [before, after] = [evaluations[0], evaluations.at(-1)].map((e) => e?.kinds[kind]);
      return [fixed(before?.[0]), fixed(after?.[0]), after?.[1] ?? "–"].map((text) => td("number", text));
    });
  const rows = kinds.map((kind) => [kind, ...cells(kind)]);
  return el("section", { id: "kinds" }, h2(null, "Success by kind of task"), table(null, [el("th"), ...head], rows));
}

function drawConfiguration(runs) {
  const field = ([key, value]) => div(null, el("dt", {}, key), el("dd", {}, value === "" ? "–" : String(value)));
  const details = (run) =>
    el(
      "details",
      {},
      el("summary", {}, run.name),
      p(null, code("command", run.command.trim() || "no command was recorded")),
      run.commit ? p("quiet", "commit ", code(null, run.commit)) : null,
      el("dl", { class: "fields" }, Object.entries(run.config).map(field)),
    );
  return el("section", { id: "configuration" }, h2(null, "Configuration"), runs.map(details));
}
