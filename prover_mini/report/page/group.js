// One group: its trajectories as rows of turns, and some of them in full beside each other.

function matrix(records, shown, { config, largest }, choose) {
  const horizon = Math.max(...records.map((r) => r.turns.length), 1);
  const named = horizon <= 8; // room for the actions themselves
  const style = { "grid-template-columns": `repeat(${horizon}, minmax(0, 1fr))` };
  const cells = (children) => el("span", { class: "cells", style }, children);
  const cell = (record, n) => {
    const { action, valid } = record.turns[n];
    const kind = `cell${pivotal(record, n) ? " pivotal" : ""}${valid ? "" : " invalid"}`;
    const background = tint(advantageOf(record, n, config), largest);
    const title = `turn ${n}: ${action.slice(0, 300)}`;
    return el("span", { class: kind, style: { background }, title, "data-turn": n }, named ? action : "");
  };
  const row = (record) => {
    const [name, sign] = ending(record);
    return el(
      "button",
      {
        class: "row",
        type: "button",
        "data-sample": record.sample,
        "aria-pressed": String(shown.includes(record.sample)),
        onclick: (event) => choose(record.sample, event.target.closest(".cell")),
      },
      span("sample", String(record.sample)),
      cells(record.turns.map((_, n) => cell(record, n))),
      span(`end ${name}`, sign),
      span("amount", record.advantage === null ? "–" : signed(record.advantage, 2)),
    );
  };
  const numbers = Array.from({ length: horizon }, (_, n) => span(null, `turn ${n}`));
  const head = div(
    "row head",
    span(null),
    cells(named ? numbers : span(null, "turns")),
    span(null),
    span("amount", "A"),
  );
  return div("matrix", head, records.map(row));
}

function scaleBar(largest) {
  const steps = [-1, -0.66, -0.33, 0, 0.33, 0.66, 1].map((v) => el("i", { style: { background: tint(v, 1) } }));
  const parts = ["advantage", signed(-largest, 2)].map((text) => span(null, text));
  return div(
    "scalebar",
    ...parts,
    span("ramp", ...steps),
    span(null, signed(largest, 2)),
    span("masked", "masked: no loss"),
    span("box", "pivotal segment"),
  );
}

function summary({ segment, sample }) {
  const { first_turn: first, last_turn: last, pre, post } = segment;
  const turns = first === last ? `Turn ${first}` : `Turns ${first} to ${last}`;
  const rates = pre && `${succeeded(pre)} of ${pre.length} continuations from before succeeded, `;
  const text = pre ? `: ${rates}${succeeded(post)} of ${post.length} from after.` : ", proposed and not verified.";
  return p("summary", b(null, turns), ` of trajectory ${sample}${text}`);
}

function streamSwitch(records, redraw) {
  if (!records.some((r) => r.turns.some((turn) => turn.tokens))) {
    return span("toggle", "its tokens were not recorded (--record-groups)");
  }
  const onchange = (event) => {
    view.stream = event.target.checked;
    redraw();
  };
  const box = el("input", { type: "checkbox", checked: view.stream, onchange });
  return el("label", { class: "toggle" }, box, "exact masked tokens");
}

function dialogue({ outcome, reason, exchanges, prompt_tokens: asked, reply_tokens: answered, seconds }) {
  // what a language model was asked as judge, and its raw answers
  const said = { segment: "proposed a segment", none: "proposed nothing", failure: `failed: ${reason}` }[outcome];
  const cost = `${grouped(asked)} + ${plural(answered, "token")}, ${short(seconds)} s`;
  const message = (role, text) => div("message", span("role", role), masked(String(text ?? "(no answer)")));
  const words = ({ content, ...rest }) =>
    typeof content === "string" ? content : JSON.stringify({ content, ...rest });
  const exchange = ({ sent, answer }) => [...sent.map((m) => message(m.role, words(m))), message("answer", answer)];
  const heading = el("summary", {}, `The judge ${said}; its dialogue (${cost})`);
  return el("details", { class: "dialogue" }, heading, exchanges.map(exchange));
}

function drawGroup({ task, kind, step, index }, { records, proposal }, config) {
  const advantages = records.flatMap((r) => r.turns.map((_, n) => Math.abs(advantageOf(r, n, config))));
  const scale = { config, largest: Math.max(...advantages, 1e-9) };
  const holders = records.filter((r) => r.segment);
  const reference = holders[0] || records.find((r) => r.success) || records[0];
  const failure = records.find((r) => !r.success && !r.error && r !== reference);
  const wide = () => document.getElementById("group").clientWidth > 640;
  let shown = wide() && failure ? [reference.sample, failure.sample] : [reference.sample];
  const grid = div("grid-of-turns");

  const redraw = () => {
    const open = shown.map((sample) =>
      drawTrajectory(
        records.find((r) => r.sample === sample),
        scale,
      ),
    );
    grid.replaceChildren(matrix(records, shown, scale, choose), scaleBar(scale.largest), div("columns", open));
  };
  const choose = (sample, cell) => {
    // a click on a row opens or closes its trajectory; one on a turn of an open trajectory goes there
    const open = shown.includes(sample);
    if (!open) shown = wide() ? [...shown.slice(-2), sample] : [sample];
    else if (!cell && shown.length > 1) shown = shown.filter((s) => s !== sample);
    redraw();
    const here = `[data-sample="${Number(sample)}"]`;
    grid.querySelector(`.row${here}`).focus({ preventScroll: true });
    const turn = open && cell ? `.trajectory${here} .turn[data-turn="${Number(cell.dataset.turn)}"]` : null;
    if (turn) grid.querySelector(turn).scrollIntoView({ block: "center" });
  };

  redraw();
  return [
    div(
      "group-head",
      h3(null, task),
      span("quiet", `${kind ? `${kind} · ` : ""}step ${step} · group ${index}`),
      streamSwitch(records, redraw),
    ),
    p("statement", (records[0].turns[0]?.observation || "").slice(0, 600)),
    ...holders.map(summary),
    ...(proposal ? [dialogue(proposal)] : []),
    grid,
  ];
}
