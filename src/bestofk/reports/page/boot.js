// The head and the foot of the page, and its sections in order.

function head() {
  const themes = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const order = Object.keys(themes);
  const theme = el(
    "button",
    {
      type: "button",
      id: "theme",
      onclick: () => {
        chosenTheme = order[(order.indexOf(chosenTheme) + 1) % order.length];
        theme.textContent = themes[chosenTheme];
        applyTheme();
      },
    },
    themes.auto,
  );
  const lines = (label, texts) =>
    texts.length > 0 &&
    el("ul", { class: "verdicts", "aria-label": label }, texts.map((text) => el("li", {}, text)));
  document.getElementById("top").append(
    el(
      "div",
      {},
      el(
        "div",
        { class: "eyebrow" },
        el("span", {}, `bestofk ${DATA.version} · ${DATA.created}`),
        el(
          "span",
          { class: "tools" },
          theme,
          el("button", { type: "button", onclick: () => window.print() }, "Print"),
        ),
      ),
      el("h1", {}, DATA.title),
      lines("Progress", DATA.progress),
      lines("Verdict", DATA.verdicts),
    ),
  );
}

function boot() {
  head();
  const browser = sampleBrowser();
  const open = (problems) => browser?.open(problems);
  const following = DATA.progress.length > 0;
  const sections = [
    following && training(),
    coverage(),
    summary(),
    differences(),
    scatter(open),
    diversity(),
    !following && training(),
    browser,
    settings(),
    methods(),
  ].filter(Boolean);
  applyTheme();
  document.getElementById("main").append(...sections.map((part) => part.node));
  document.getElementById("contents").append(
    el(
      "ul",
      {},
      sections.map((part) => el("li", {}, el("a", { href: `#${part.id}` }, part.title))),
    ),
  );
  document
    .getElementById("foot")
    .append(el("p", {}, "Made by bestofk. One file, no network: it can be mailed and archived as it is."));
}
boot();
