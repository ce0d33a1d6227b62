// Only on a page that follows a run: load the newer one when there is one, at the place that is read.
(() => {
  const place = "bestofk-scroll";
  const from = Number(sessionStorage.getItem(place) ?? 0);
  if (from) window.addEventListener("load", () => setTimeout(() => window.scrollTo(0, from), 50));
  let stamp = null;
  setInterval(async () => {
    try {
      const now = await (await fetch("stamp", { cache: "no-store" })).text();
      if (stamp !== null && now !== stamp) {
        sessionStorage.setItem(place, String(window.scrollY));
        location.reload();
      }
      stamp = now;
      document.title = document.title.replace(/^\(stopped\) /, "");
    } catch {
      if (!document.title.startsWith("(stopped) ")) document.title = `(stopped) ${document.title}`;
    }
  }, 2000);
})();
