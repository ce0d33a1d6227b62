// The demo's figures, drawn by the charts of the report.

const figure = (spec) => {
  const write = spec.percent ? (value) => `${fixed(value, 1)}%` : (value) => fixed(value, 2);
  return lineChart({ ...spec, write, series: spec.series.map((one, run) => ({ ...one, x: spec.x, run })) });
};

applyTheme();
const [first, ...others] = DATA.charts.map(figure);
document.getElementById("legend").append(legend(DATA.runs.map((_, run) => run)));
document.getElementById("passes").append(first.host);
document
  .getElementById("training")
  .append(...others.map((chart, i) => el("figure", {}, el("h3", {}, DATA.charts[i + 1].title), chart.host)));
