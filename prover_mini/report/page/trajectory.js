// One trajectory, turn by turn and token by token. `scale` holds the run's configuration and the group's largest advantage.

const view = { stream: false }; // stream: show the exact masked tokens instead of the observation's text

function creditOf(record, n, config) {
  // what was added to the trajectory's advantage at turn n; runs that did not record it had the accepted segment's alone
  const recorded = record.turns[n].credit;
  if (recorded !== undefined) return recorded ?? 0;
  const credited = record.segment?.accepted && config.credit === "prover" && pivotal(record, n);
  return credited ? (config.credit_weight ?? 1) * record.segment.delta : 0;
}

const advantageOf = (record, n, config) => (record.advantage ?? 0) + creditOf(record, n, config);
const pivotal = ({ segment }, n) => Boolean(segment && n >= segment.first_turn && n <= segment.last_turn);
const succeeded = (rewards) => rewards.filter((reward) => reward > 0).length;

function tint(value, largest) {
  if (!value) return "var(--panel)";
  const share = 10 + 50 * Math.min(1, Math.abs(value) / largest);
  return `color-mix(in oklab, var(${value > 0 ? "--gain" : "--loss"}) ${share.toFixed(0)}%, var(--panel))`;
}

function ending(record) {
  if (record.error) return ["error", "!"];
  if (record.success) return ["success", "✓"];
  return [record.truncated ? "cut off" : "failure", "✗"];
}

function fork(where, rewards) {
  const said = `${succeeded(rewards)} of ${rewards.length} continuations succeeded`;
  const dots = rewards.map((r) => el("i", { class: r > 0 ? "yes" : "no", title: `reward ${short(r)}` }));
  return div(
    "fork",
    span("where", where),
    el("span", { class: "marks", role: "img", "aria-label": said }, dots),
    b(null, `${succeeded(rewards)}/${rewards.length}`),
  );
}

function verdict(record, config) {
  const { delta, accepted, first_turn: first } = record.segment;
  const credit = creditOf(record, first, config);
  const bonus = credit
    ? `its tokens get A ${credit < 0 ? MINUS : "+"} ${short(Math.abs(credit))}`
    : "its tokens keep A";
  if (delta === null) return p("verdict", `Not verified; ${bonus}.`);
  const figure = el("span", { class: "delta", "data-delta": delta }, `delta ${signed(delta)}`);
  return p("verdict", figure, ` ${accepted ? "accepted" : "not accepted"}: ${bonus}.`);
}

function masked(text, folded) {
  // what the policy saw, shortened when it is long, and more so when `folded`
  const [rows, characters] = folded ? [3, 160] : [14, 900];
  const brief = text.split("\n").slice(0, rows).join("\n").slice(0, characters);
  const box = div("observation", brief);
  if (brief.length < text.length) {
    const unfold = () => box.replaceChildren(text);
    const label = `… all ${grouped(text.length)} characters`;
    box.append(el("button", { class: "unfold", type: "button", onclick: unfold }, label));
  }
  return box;
}

function action(record, n, { config, largest }) {
  const turn = record.turns[n];
  const background = tint(advantageOf(record, n, config), largest);
  if (!turn.tokens) return el("div", { class: "action", style: { background } }, turn.action || "(nothing)");
  const pieces = turn.tokens.map((text, i) =>
    el("span", { class: "token", "data-i": i, style: { background } }, text === "" ? "·" : text),
  );
  const explain = (event) => {
    const piece = event.target.closest(".token");
    if (piece) showTip(event, ...tokenFigures(record, n, Number(piece.dataset.i), config));
    else hideTip();
  };
  const listeners = { onpointermove: explain, onpointerdown: explain, onpointerleave: hideTip };
  return el("div", { class: "action", ...listeners }, pieces);
}

function tokenFigures(record, n, i, config) {
  const turn = record.turns[n];
  const credit = creditOf(record, n, config);
  const gap = turn.gaps && (turn.gaps[i] === null ? "not finite" : scientific(turn.gaps[i]));
  return [
    div("tip-title mono", JSON.stringify(turn.tokens[i])),
    tipRow("advantage", signed(advantageOf(record, n, config))),
    ...(credit ? [tipRow("credit in it", signed(credit))] : []),
    tipRow("sampler's log-prob", `${fixed(turn.logprobs[i], 4)} (p ${fixed(Math.exp(turn.logprobs[i]))})`),
    tipRow("trainer – sampler", gap ?? "no loss, advantage 0"),
  ];
}

function turnHead(record, n, config) {
  const [start, end] = record.turns[n].token_span;
  const before = n ? record.turns[n - 1].token_span[1] : 0;
  const credit = creditOf(record, n, config);
  const added = credit ? ` ${credit < 0 ? MINUS : "+"} ${fixed(Math.abs(credit))}` : "";
  return div(
    "turn-head",
    span(null, `turn ${n}`),
    record.turns[n].valid ? null : span("flag", "invalid action"),
    span("quiet", `${plural(end - start, "token")}, ${start - before} masked before`),
    span("sum", record.advantage === null ? "not trained on" : `A ${signed(record.advantage)}${added}`),
  );
}

function drawTurn(record, n, scale) {
  const { segment, turns } = record;
  const inside = pivotal(record, n);
  const first = inside && n === segment.first_turn;
  const last = inside && n === segment.last_turn;
  const text = (view.stream && turns[n].context) || turns[n].observation;
  return [
    first && segment.pre ? fork(`from before turn ${n}`, segment.pre) : null,
    el(
      "div",
      { class: `turn${inside ? " pivotal" : ""}`, "data-turn": n },
      first ? div("reason", b(null, "Pivotal segment"), segment.reason ? `: ${segment.reason}` : "") : null,
      turnHead(record, n, scale.config),
      masked(text, turns.length > 8 && !inside),
      action(record, n, scale),
    ),
    last && segment.post ? fork(`from after turn ${n}`, segment.post) : null,
    last ? verdict(record, scale.config) : null,
  ];
}

function drawTrajectory(record, scale) {
  const [name, sign] = ending(record);
  return el(
    "article",
    { class: "trajectory", "data-sample": record.sample },
    el(
      "h4",
      {},
      `Trajectory ${record.sample} `,
      span(`end ${name}`, `${sign} ${name}`),
      span("quiet", ` reward ${short(record.reward)}`),
    ),
    record.error ? p("flag", record.error) : null,
    record.turns.length ? record.turns.map((_, n) => drawTurn(record, n, scale)) : p("none", "It never began."),
  );
}
