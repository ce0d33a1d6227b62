// The browser of samples: problems on the left, one problem's groups on the right, best of k marked.

const PAGE = 100;
const FIRST = 8;
const idOf = (problem) => DATA.per_problem.ids[problem.problem];
const tally = (g) => (g.passed === null ? general(g.best_reward) : `${g.passed}/${g.scored}`);

// The (k, sample) pair of the deepest draw that is no deeper than k.
const bestOf = (g, k) => g.best.filter(([depth]) => depth <= k).at(-1);

function textBox(part, label) {
  const attributes = { class: "text", dir: "auto", tabindex: "0", role: "region" };
  const body = el("pre", { ...attributes, "aria-label": label }, textNodes(part.t || "(empty)"));
  if (part.cut) {
    const all = part.t.length + part.e.length + part.cut;
    const left = `… ${count(part.cut)} of ${count(all)} characters are left out here …`;
    body.append(el("span", { class: "cut" }, left), ...textNodes(part.e));
  }
  return body;
}

// A trajectory: what the model wrote is open; what its environment answered is folded where it is long.
function conversation(sample) {
  const half = Math.ceil(sample.messages.length / 2);
  return sample.messages.flatMap((message, i) => {
    const own = message.role === "assistant";
    const role = own ? "model" : message.role === "user" ? "environment" : message.role;
    const who = [el("b", {}, role), message.name && el("code", {}, message.name)];
    const text = textBox(message, `Message of ${message.role}, sample ${sample.i}`);
    const open = own || (!message.cut && message.t.length < 100);
    const first = el("bdi", { class: "opening soft" }, opening(message.t));
    const attributes = { class: own ? "turn" : "turn reply", open };
    const shown = el("details", attributes, el("summary", {}, who, first), text);
    const gap = el("p", { class: "cut" }, `… ${plural(sample.omitted, "message")} left out here …`);
    return sample.omitted && i === half ? [gap, shown] : shown;
  });
}

function sampleCard(sample, run, mark) {
  const meta = [
    el("b", {}, `sample ${count(sample.i)}`),
    el("b", {}, isNumber(sample.r) ? `reward ${general(sample.r)}` : "unscored"),
    sample.score !== undefined && el("b", {}, `score ${general(Number(sample.score))}`),
    sample.s !== null && el("bdi", {}, DATA.samples.statuses[sample.s]),
    sample.a !== null && el("span", {}, "answer ", el("code", { class: "text" }, sample.a)),
    sample.messages
      ? el("span", {}, `${plural(sample.turns, "turn")}, ended by: ${sample.ended_by}`)
      : sample.f && el("span", {}, `finish: ${sample.f}`),
    sample.tool_errors > 0 && el("span", { class: "flag warn" }, plural(sample.tool_errors, "tool error")),
    isNumber(sample.n) && el("span", {}, plural(sample.n, "token")),
    sample.seed !== undefined && el("span", {}, `seed ${sample.seed}`),
    mark && el("span", { class: "flag warn" }, mark),
  ];
  const attributes = { class: mark ? "sample best" : "sample", swatch: run };
  const body = sample.messages ? conversation(sample) : textBox(sample, `Completion ${sample.i}`);
  return el("article", attributes, el("div", { class: "meta" }, meta), body);
}

function promptBox(prompt) {
  if (prompt === null) return null;
  const attributes = { class: "text prompt", dir: "auto", tabindex: "0", role: "region" };
  const text = el("pre", { ...attributes, "aria-label": "Prompt" }, textNodes(prompt));
  return el("details", { open: prompt.length < 700 }, el("summary", {}, "Prompt"), text);
}

// How far apart the runs are on a problem: the largest difference between their shares or rewards.
const worthOf = (g) => (g.passed === null ? g.best_reward : g.scored ? g.passed / g.scored : null);
function disagreement(problem) {
  const worth = problem.runs.map(worthOf).filter(isNumber);
  return worth.length > 1 ? Math.max(...worth) - Math.min(...worth) : 0;
}
const opening = (prompt) => {
  const line = (prompt ?? "").replace(/\s+/g, " ").trim();
  return line.length > 90 ? `${line.slice(0, 89)}…` : line;
};

class SampleBrowser {
  constructor({ problems }) {
    problems = [...problems].sort((one, other) => disagreement(other) - disagreement(one));
    this.problems = problems;
    this.words = problems.map((one) => `${idOf(one)}\n${one.prompt ?? ""}`.toLowerCase());
    this.filter = { text: "", run: null, status: null, low: null, high: null, only: null };
    this.k = Infinity;
    this.page = 0;
    this.current = null;
    this.list = el("ol");
    this.pager = el("div", { class: "pager" });
    this.group = el("div", { class: "group", tabindex: "-1" });
    this.said = el("span", { class: "soft small", role: "status" });
    const all = () => this.narrow({ only: null });
    this.clear = el("button", { type: "button", onclick: all }, "Show all problems again");
  }

  narrow(changes) {
    Object.assign(this.filter, changes);
    this.page = 0;
    this.update();
  }

  keepsSample(sample) {
    const { status, low, high } = this.filter;
    if (status !== null && sample.s !== status) return false;
    if (low !== null && !(isNumber(sample.r) && sample.r >= low)) return false;
    return high === null || (isNumber(sample.r) && sample.r <= high);
  }

  groupsOf(problem) {
    return problem.runs.filter((g) => this.filter.run === null || g.run === this.filter.run);
  }

  matching() {
    const { only, text } = this.filter;
    const any = (problem) =>
      this.groupsOf(problem).some((g) => g.items.some((sample) => this.keepsSample(sample)));
    return this.problems.filter(
      (one, i) => (!only || only.has(one.problem)) && this.words[i].includes(text) && any(one),
    );
  }

  update() {
    const found = this.matching();
    if (!found.includes(this.current)) this.current = found[0] ?? null;
    this.drawList(found);
    this.drawGroup(this.current);
    const { only } = this.filter;
    const absent = only ? only.size - this.problems.filter((one) => only.has(one.problem)).length : 0;
    this.clear.hidden = !only;
    this.said.textContent =
      `${plural(found.length, "problem")} with a matching sample, of ${count(only?.size ?? this.problems.length)}` +
      (absent ? `; ${count(absent)} not on this page: a larger --samples puts more on it` : "");
  }

  drawList(found) {
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const part = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    this.list.replaceChildren(...part.map((problem) => el("li", {}, this.entry(problem))));
    const turn = (by, name) => {
      const step = () => {
        this.page += by;
        this.drawList(found);
      };
      const off = this.page + by < 0 || this.page + by >= pages;
      return el("button", { type: "button", disabled: off, onclick: step }, name);
    };
    this.pager.hidden = pages === 1;
    this.pager.replaceChildren(
      turn(-1, "Back"),
      el("span", {}, `${this.page + 1} of ${pages}`),
      turn(1, "Next"),
    );
  }

  entry(problem) {
    const open = () => {
      this.current = problem;
      for (const other of this.list.querySelectorAll("button"))
        other.setAttribute("aria-current", other === button);
      this.drawGroup(problem);
    };
    const counts = this.groupsOf(problem).map((g) =>
      el("span", { class: "count" }, `${letter(g.run)} ${tally(g)}`),
    );
    const current = String(problem === this.current);
    const button = el(
      "button",
      { type: "button", "aria-current": current, onclick: open },
      el("bdi", { class: "id" }, idOf(problem)),
      el("span", { class: "soft num" }, counts),
      problem.prompt !== null && el("bdi", { class: "opening soft" }, opening(problem.prompt)),
    );
    return button;
  }

  drawGroup(problem) {
    const content = problem
      ? [
          el("h3", {}, "Problem ", el("bdi", {}, idOf(problem))),
          promptBox(problem.prompt),
          el(
            "div",
            { class: "blocks" },
            this.groupsOf(problem).map((g) => this.block(g)),
          ),
        ]
      : el("p", { class: "soft" }, "No sample matches these filters.");
    this.group.replaceChildren(el("div", {}, content));
  }

  block(g) {
    const best = bestOf(g, this.k);
    const isBest = (sample) => best !== undefined && sample.i === best[1];
    const items = g.items.filter((sample) => this.keepsSample(sample));
    items.sort((one, other) => isBest(other) - isBest(one) || one.i - other.i);
    const depth = `best of ${count(Math.min(this.k, g.n))}`;
    const worth =
      g.passed === null ? `best reward ${general(g.best_reward)}` : `${g.passed} of ${g.scored} pass`;
    const cards = (some) => some.map((sample) => sampleCard(sample, g.run, isBest(sample) ? depth : null));
    const more = el(
      "button",
      { type: "button", onclick: () => more.replaceWith(...cards(items.slice(FIRST))) },
      `Show ${count(items.length - FIRST)} more`,
    );
    return el(
      "div",
      { class: "block" },
      el("h3", {}, tag(g.run), el("bdi", {}, DATA.runs[g.run].name)),
      el("p", { class: "soft small num" }, `${worth}; ${items.length} here of ${count(g.n)} drawn`),
      best &&
        !g.items.some(isBest) &&
        el(
          "p",
          { class: "soft small" },
          `The ${depth} is sample ${count(best[1])}, which is not on this page.`,
        ),
      items.length === 0 && el("p", { class: "soft small" }, "None of these matches the filters."),
      cards(items.slice(0, FIRST)),
      items.length > FIRST && more,
    );
  }

  controls() {
    const any = { value: null, label: "any" };
    const change = (key) => (value) => this.narrow({ [key]: value });
    const number = (label, key) => {
      const input = el("input", {
        type: "number",
        step: "any",
        oninput: () => this.narrow({ [key]: input.value === "" ? null : Number(input.value) }),
      });
      return el("label", {}, label, input);
    };
    this.search = el("input", {
      type: "search",
      placeholder: "id, or its prompt",
      oninput: () => this.narrow({ text: this.search.value.toLowerCase() }),
    });
    const runs = DATA.runs.map((run, value) => ({ value, label: `${letter(value)} ${visible(run.name)}` }));
    const statuses = DATA.samples.statuses.map((label, value) => ({ value, label: visible(label) }));
    const deepest = Math.max(1, ...DATA.runs.map((run) => run.n_max));
    const depths = Array.from({ length: Math.floor(Math.log2(deepest)) + 1 }, (_, i) => ({
      value: 2 ** i,
      label: count(2 ** i),
    }));
    return el(
      "div",
      { class: "controls", role: "search", "aria-label": "Filter samples" },
      el("label", {}, "Problem", this.search),
      chooser("Run", [any, ...runs], null, change("run")),
      statuses.length > 0 && chooser("Status", [any, ...statuses], null, change("status")),
      number("Reward from", "low"),
      number("to", "high"),
      chooser(
        "Mark the best of the first",
        [{ value: Infinity, label: "all drawn" }, ...depths],
        Infinity,
        (k) => {
          this.k = k;
          this.update();
        },
      ),
    );
  }

  open(problems) {
    this.search.value = "";
    this.narrow({ only: new Set(problems), text: "" });
    this.group.closest("section").scrollIntoView();
    this.group.focus({ preventScroll: true });
    announce(this.said.textContent);
  }
}

function sampleBrowser() {
  if (!DATA.samples) return null;
  const browser = new SampleBrowser(DATA.samples);
  const { rule, total, shown: kept } = DATA.samples;
  const part = section(
    "samples",
    "Samples",
    `${rule} ${count(kept)} of ${count(total)} samples are on this page${DATA.runs.length > 1 ? "; problems on which the runs disagree most come first" : ""}.`,
    browser.controls(),
    el("div", { class: "controls" }, browser.said, browser.clear),
    el(
      "div",
      { class: "browser" },
      el("div", { class: "problems" }, browser.list, browser.pager),
      browser.group,
    ),
  );
  browser.update();
  return { ...part, open: (problems) => browser.open(problems) };
}
