// What every part of the page uses: the data, making elements, numbers, the theme, which runs are shown.
// Text from outside (names, prompts, completions) reaches the page through textContent only.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const letter = (run) => LETTERS[run] ?? String(run + 1);
const runPlace = (run) => `--run${DATA.runs[run].colour}`;

// Characters that change how their neighbours are shown, or show nothing at all, are written out.
const INVISIBLE =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]/gu;
const codePoint = (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
const visible = (text) => String(text).replace(INVISIBLE, codePoint);

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "swatch") node.style.setProperty("--swatch", `var(${runPlace(value)})`);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return node;
}

// Model text: control characters stand out, so that they are not taken for text the model wrote.
function textNodes(text) {
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(INVISIBLE)) {
    if (match.index > from) nodes.push(document.createTextNode(text.slice(from, match.index)));
    nodes.push(el("span", { class: "control" }, codePoint(match[0])));
    from = match.index + match[0].length;
  }
  nodes.push(document.createTextNode(text.slice(from)));
  return nodes;
}

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const fixed = (value, digits = 3) => (isNumber(value) ? value.toFixed(digits).replace("-", "−") : "–");
const signed = (value, digits = 3) => (isNumber(value) && value > 0 ? "+" : "") + fixed(value, digits);
const range = (low, high, write = fixed) => (isNumber(low) ? `[${write(low)}, ${write(high)}]` : "");
const count = (value) => (isNumber(value) ? value.toLocaleString("en-US").replaceAll(",", "\u202f") : "–");
const plural = (value, word) => `${count(value)} ${word}${value === 1 ? "" : "s"}`;
const inClusters = (one) =>
  plural(one.problems, "problem") + (one.clusters ? ` in ${count(one.clusters)} clusters` : "");
const pValue = (p) => (!isNumber(p) ? "–" : p < 0.001 ? "< 0.001" : p.toFixed(3));
// Training metrics span decades: four significant digits, with an exponent only where it helps.
function general(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
  return Number(value.toPrecision(4)).toString().replace("-", "−");
}

const announce = (text) => (document.getElementById("live").textContent = visible(text));

// --- state: the theme, and the runs that are shown; whoever draws asks to be told of a change
const listeners = [];
const onChange = (redraw) => listeners.push(redraw);
const shown = DATA.runs.map(() => true);
let printing = false;

function toggleRun(run) {
  shown[run] = !shown[run];
  for (const button of document.querySelectorAll(`.legend button[data-run="${run}"]`)) {
    button.setAttribute("aria-pressed", shown[run]);
  }
  for (const redraw of listeners) redraw("runs");
}

const systemTheme = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "auto";
function applyTheme() {
  const dark = !printing && (chosenTheme === "dark" || (chosenTheme === "auto" && systemTheme.matches));
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  for (const redraw of listeners) redraw("theme");
}
systemTheme.addEventListener("change", applyTheme);
window.addEventListener("beforeprint", () => {
  printing = true;
  applyTheme();
});
window.addEventListener("afterprint", () => {
  printing = false;
  applyTheme();
});

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const runColour = (run) => colour(runPlace(run));

// --- small pieces used everywhere
const tag = (run) => el("span", { class: "tag", swatch: run, "aria-hidden": "true" }, letter(run));
const runName = (run) => el("span", { class: "name" }, tag(run), el("bdi", {}, DATA.runs[run].name));
const interval = (low, high, write = fixed) => el("span", { class: "interval" }, range(low, high, write));

function legend(runs) {
  return el(
    "div",
    { class: "legend", role: "group", "aria-label": "Runs shown" },
    runs.map((run) =>
      el(
        "button",
        {
          type: "button",
          "data-run": run,
          "aria-pressed": String(shown[run]),
          title: "Show or hide this run in every figure",
          onclick: () => toggleRun(run),
        },
        tag(run),
        el("bdi", {}, DATA.runs[run].name),
      ),
    ),
  );
}

let tables = 0;
function dataTable(head, rows, { caption, left = [], scroll = "scroll", className = "table" }) {
  const id = `table-${(tables += 1)}`;
  const cell = (kind, value, column) =>
    el(kind, { class: left.includes(column) ? "left" : null, scope: kind === "th" ? "col" : null }, value);
  const row = (kind, values) =>
    el(
      "tr",
      {},
      values.map((value, column) => cell(kind, value, column)),
    );
  return el(
    "div",
    { class: className },
    el("p", { class: "caption", id }, caption),
    el(
      "div",
      { class: scroll, tabindex: "0", role: "region", "aria-labelledby": id },
      el(
        "table",
        { "aria-labelledby": id },
        el("thead", {}, row("th", head)),
        el(
          "tbody",
          {},
          rows.map((values) => row("td", values)),
        ),
      ),
    ),
  );
}

// The numbers behind a chart, written when they are first asked for: a page has many.
function tableBehind(make) {
  const details = el("details", { class: "behind" }, el("summary", {}, "Show the numbers"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}

function chooser(label, options, chosen, onchoose) {
  const select = el(
    "select",
    { "aria-label": label, onchange: () => onchoose(options[select.selectedIndex].value) },
    options.map((option) => el("option", {}, option.label)),
  );
  select.selectedIndex = Math.max(
    0,
    options.findIndex((option) => option.value === chosen),
  );
  return el("label", {}, label, select);
}
