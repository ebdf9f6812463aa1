// The browser: a filtered, paged list of groups beside the chosen one.

const PER_PAGE = 40;
const SHOW = {
  segments: { label: "with a segment", of: (g) => g.segments.length > 0 },
  accepted: { label: "accepted", of: (g) => g.segments.some((s) => s.accepted) },
  rejected: { label: "not accepted", of: (g) => g.segments.some((s) => s.accepted === false) },
  failed: { label: "judge failed", of: (g) => g.failed },
  mixed: { label: "mixed outcomes", of: (g) => g.outcomes.includes("S") && g.outcomes.includes("F") },
  all: { label: "all groups", of: () => true },
};

async function unpack(place) {
  const bytes = Uint8Array.from(atob(PACKED[place]), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function select(label, options, change) {
  const box = el("select", { onchange: () => change(box.value) });
  box.append(...options.map(([value, text]) => el("option", { value }, text)));
  return el("label", {}, span(null, label), box);
}

function item(g, chosen, open) {
  const successes = [...g.outcomes].filter((c) => c === "S").length;
  const dots = [...g.outcomes].map((c) => el("i", { class: { S: "yes", F: "no", E: "broken" }[c] }));
  const lost = g.packed === null;
  return el(
    "button",
    {
      class: "item",
      type: "button",
      disabled: lost,
      title: lost ? "not kept in this file" : null,
      "aria-current": g === chosen ? "true" : null,
      "data-step": g.step,
      "data-group": g.index,
      onclick: () => open(g),
    },
    span("task", g.task),
    span("step", `step ${g.step}`),
    el("span", { class: "marks small", role: "img", "aria-label": `${successes} of ${dots.length} succeeded` }, dots),
    span("chips", g.segments.map(chip)),
  );
}

function chip({ delta, accepted, before, after }) {
  const text = delta === null ? "not verified" : `${before.join("/")} → ${after.join("/")}`;
  return span(`chip ${accepted ? "accepted" : "rejected"}`, text);
}

function drawBrowser(runs) {
  const state = { run: 0, show: "segments", step: "", text: "", page: 0, chosen: null };
  if (!runs.some((run) => run.groups.some(SHOW.segments.of))) state.show = "all";
  const list = div("list");
  const pager = div("pager");
  const steps = div("steps");
  const detail = el("div", { id: "group" });

  const groups = () => runs[state.run].groups;
  const found = () =>
    groups().filter(
      (g) =>
        SHOW[state.show].of(g) &&
        (state.step === "" || g.step === Number(state.step)) &&
        `${g.task} ${g.kind}`.toLowerCase().includes(state.text),
    );

  const refresh = (change = {}) => {
    Object.assign(state, { page: 0, ...change });
    const all = found();
    const pages = Math.max(1, Math.ceil(all.length / PER_PAGE));
    const from = state.page * PER_PAGE;
    const here = all.slice(from, from + PER_PAGE);
    list.replaceChildren(...here.map((g) => item(g, state.chosen, open)));
    if (!here.length) list.append(p("none", "No group is like this."));
    list.scrollTop = 0;
    const turn = (by, text, label) => {
      const page = state.page + by;
      const disabled = page < 0 || page >= pages;
      return el("button", { type: "button", "aria-label": label, disabled, onclick: () => refresh({ page }) }, text);
    };
    const place = here.length
      ? `${grouped(from + 1)}–${grouped(from + here.length)} of ${grouped(all.length)}`
      : "none";
    pager.replaceChildren(turn(-1, "‹", "previous page"), span(null, place), turn(1, "›", "next page"));
  };

  const open = async (g, remember = true) => {
    state.chosen = g;
    const content = await unpack(g.packed);
    if (state.chosen !== g) return; // another one was chosen meanwhile
    detail.replaceChildren(...drawGroup(g, content, runs[state.run].config));
    for (const node of list.querySelectorAll("[aria-current]")) node.removeAttribute("aria-current");
    list.querySelector(`[data-step="${g.step}"][data-group="${g.index}"]`)?.setAttribute("aria-current", "true");
    if (remember) history.replaceState(null, "", `#run=${state.run}&step=${g.step}&group=${g.index}`);
  };

  const showRun = (run) => {
    state.run = run;
    const numbers = [...new Set(groups().map((g) => g.step))].map((step) => [step, `step ${step}`]);
    steps.replaceChildren(select("step", [["", "all steps"], ...numbers], (step) => refresh({ step })));
    refresh({ step: "" });
  };

  const openFirst = () => {
    const kept = groups().filter((g) => g.packed !== null);
    const first = kept.find(SHOW.accepted.of) || kept.find(SHOW.segments.of) || kept[0];
    if (first) open(first, false);
    else detail.replaceChildren(p("none", "No trajectory was kept in this file."));
  };

  const openAddressed = () => {
    const asked = new URLSearchParams(location.hash.slice(1));
    const number = (name) => Number(asked.get(name));
    const like = (g) => g.step === number("step") && g.index === number("group") && g.packed !== null;
    const g = asked.has("group") && runs[number("run")]?.groups.find(like);
    if (!g) return false;
    if (state.run !== number("run")) showRun(number("run"));
    open(g, false);
    document.getElementById("credit").scrollIntoView();
    return true;
  };

  const search = (event) => refresh({ text: event.target.value.trim().toLowerCase() });
  const kinds = Object.entries(SHOW).map(([key, { label }]) => [key, label]);
  const shows = select("show", kinds, (show) => refresh({ show }));
  shows.querySelector("select").value = state.show;
  const names = runs.map((run, i) => [i, run.name]);
  const chooseRun = (run) => {
    showRun(Number(run));
    openFirst();
  };
  const controls = div(
    "controls",
    runs.length > 1 ? select("run", names, chooseRun) : null,
    shows,
    steps,
    el(
      "label",
      { class: "search" },
      span(null, "task"),
      el("input", { type: "search", placeholder: "name or kind", oninput: search }),
    ),
  );
  addEventListener("hashchange", openAddressed);
  requestAnimationFrame(() => {
    // the width of the page, by which a group is laid out, is known only now
    showRun(0);
    if (!openAddressed()) openFirst();
  });
  return el(
    "section",
    { id: "credit" },
    h2(null, "Where credit went"),
    p(
      "lead",
      "A judge proposes a segment of a success; continuations from before and after it decide whether it counts.",
    ),
    runs.map(sampled),
    controls,
    div("browser", div("side", list, pager), detail),
  );
}

function sampled(run) {
  const { groups, of_groups, trajectories, of_trajectories } = run.kept;
  if (groups === of_groups) return null;
  const amount = `${grouped(trajectories)} of ${grouped(of_trajectories)} trajectories`;
  return p(
    "note",
    `${run.name}: this file holds ${amount} (${grouped(groups)} of ${grouped(of_groups)} groups): those with a verified `,
    "segment first, then mixed outcomes, then others, drawn evenly over the run. The list names all groups.",
  );
}
