// One point per problem: run a along x, run b along y. Problems at the same place make one larger point.

function places(ids, a, b) {
  const found = new Map();
  ids.forEach((_, problem) => {
    if (!isNumber(a[problem]) || !isNumber(b[problem])) return;
    const key = `${a[problem]} ${b[problem]}`;
    if (!found.has(key)) found.set(key, { x: a[problem], y: b[problem], problems: [] });
    found.get(key).problems.push(problem);
  });
  return [...found.values()].sort((p, q) => p.x - q.x || p.y - q.y);
}

const radius = (place) => Math.min(3.2 + 1.15 * (Math.sqrt(place.problems.length) - 1), 15);
const side = (place, spec) => (place.y > place.x ? spec.b : place.y < place.x ? spec.a : null);

function drawPlaces(u, spec, points) {
  const { ctx, bbox } = u,
    ratio = devicePixelRatio;
  ctx.save();
  const at = (v, scale) => u.valToPos(v, scale, true);
  const [low, high] = spec.limits;
  ctx.strokeStyle = colour("--soft");
  ctx.lineWidth = ratio;
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(at(low, "x"), at(low, "y"));
  ctx.lineTo(at(high, "x"), at(high, "y"));
  ctx.stroke();
  ctx.setLineDash([]);
  for (const place of points) {
    const run = side(place, spec);
    ctx.beginPath();
    ctx.arc(at(place.x, "x"), at(place.y, "y"), radius(place) * ratio, 0, 2 * Math.PI);
    ctx.lineWidth = ratio;
    if (run === null) {
      ctx.strokeStyle = colour("--soft"); // a tie: hollow
      ctx.stroke();
      continue;
    }
    ctx.fillStyle = runColour(run);
    ctx.globalAlpha = 0.6;
    ctx.fill();
    ctx.globalAlpha = 1;
    ctx.strokeStyle = colour("--card");
    ctx.stroke();
  }
  const name = (run, x, y, align, base) => {
    Object.assign(ctx, { textAlign: align, textBaseline: base, lineWidth: 5 * ratio });
    ctx.strokeStyle = colour("--card"); // a halo: points may lie below
    ctx.strokeText(`${letter(run)} better`, x, y);
    ctx.fillStyle = runColour(run);
    ctx.fillText(`${letter(run)} better`, x, y);
  };
  ctx.font = `600 ${11.5 * ratio}px ${colour("--sans")}`;
  ctx.lineJoin = "round";
  name(spec.b, bbox.left + 14 * ratio, bbox.top + 10 * ratio, "left", "top");
  const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
  name(spec.a, right - 14 * ratio, bottom - 10 * ratio, "right", "bottom");
  ctx.restore();
}

// spec: title, ids, a, b (run numbers), values(run) → one number per problem, measure, limits, onpick(problems)
function scatterChart(spec) {
  const host = el("div", {
    class: "chart",
    tabindex: "0",
    role: "group",
    "aria-roledescription": "chart",
    "aria-label": `${spec.title}. Arrow keys go through the points, Enter opens the samples; the numbers follow as a table.`,
  });
  const tip = tooltip(host);
  let points = [],
    current = -1;

  const reading = (u, i, speak) => {
    const { x, y, problems } = points[i];
    const names = problems.slice(0, 2).map((problem) => visible(spec.ids[problem]));
    const more = problems.length > 2 ? ` and ${count(problems.length - 2)} more` : "";
    tip.show(
      u,
      u.valToPos(x, "x"),
      names.join(", ") + more,
      [
        { run: spec.a, text: `${spec.measure} ${fixed(x)}` },
        { run: spec.b, text: `${spec.measure} ${fixed(y)}` },
      ],
      speak,
      u.valToPos(y, "y"),
    );
  };
  const nearest = (u, left, top) => {
    let best = -1,
      least = 18 ** 2;
    points.forEach((place, i) => {
      const d = (u.valToPos(place.x, "x") - left) ** 2 + (u.valToPos(place.y, "y") - top) ** 2;
      if (d < least) {
        least = d;
        best = i;
      }
    });
    return best;
  };
  const hover = (u) => {
    current = u.cursor.left < 0 ? -1 : nearest(u, u.cursor.left, u.cursor.top);
    u.over.style.cursor = current < 0 ? "default" : "pointer";
    if (current < 0) tip.hide();
    else reading(u, current, false);
  };

  function build(width, height) {
    points = places(spec.ids, spec.values(spec.a), spec.values(spec.b));
    const box = {
      x: { time: false, range: () => padded(spec.limits) },
      y: { range: () => padded(spec.limits) },
    };
    const u = new uPlot(
      {
        width,
        height: Math.min(Math.max(height, Math.round(width * 0.8)), 420),
        series: [{}, { stroke: "transparent", width: 0, points: { show: false } }],
        axes: axes({
          xLabel: `${letter(spec.a)}: ${spec.measure}`,
          yLabel: `${letter(spec.b)}: ${spec.measure}`,
        }),
        scales: box,
        legend: { show: false },
        padding: [8, 12, 0, 0],
        cursor: {
          x: false,
          y: false,
          points: { show: false },
          drag: { x: false, y: false, setScale: false },
        },
        hooks: { draw: [(plot) => drawPlaces(plot, spec, points)], setCursor: [hover] },
      },
      [points.map((p) => p.x), points.map((p) => p.y)],
      host,
    );
    u.over.addEventListener("click", () => {
      if (current >= 0) spec.onpick(points[current].problems);
    });
    return u;
  }

  const chart = mount(host, build, 340);
  keyboard(
    host,
    () => points.length,
    (i) => {
      current = i;
      reading(chart.plot(), i, true);
    },
    () => tip.hide(),
  );
  host.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && current >= 0) spec.onpick(points[current].problems);
  });
  return {
    host,
    set: (changes) => {
      Object.assign(spec, changes);
      chart.draw();
    },
    points: () => points,
  };
}

function padded([low, high]) {
  const pad = (high - low) * 0.04;
  return [low - pad, high + pad];
}
