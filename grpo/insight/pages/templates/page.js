// Shows the values of a chart under the pointer, or at the arrow keys. The points come from data-values of the figure:
// {x: label, series: [{name, color, points: [[x, y, text of x, text of y], …]}]}, with x and y in the SVG's units.
"use strict";
const NEAR = 14; // SVG units; a series without a point so near is told of only where it shares the text of x

function element(name, parent, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function nearest(points, x) {
  let best = null;
  for (const point of points) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

// Bars of one group stand beside each other, and share the text of x: all of them are told.
function toldOf(points, center) {
  const point = nearest(points.filter((one) => one[2] === center[2]), center[0]) || nearest(points, center[0]);
  return point && (point[2] === center[2] || Math.abs(point[0] - center[0]) <= NEAR) ? point : null;
}

function attach(figure) {
  const chart = figure.querySelector(".chart"), svg = chart.querySelector("svg");
  const { x: label, series } = JSON.parse(figure.dataset.values);
  const all = series.flatMap((one) => one.points);
  if (!all.length) return;
  const places = [...new Set(all.map((point) => point[0]))].sort((a, b) => a - b);
  const overlay = document.createElementNS(svg.namespaceURI, "g");
  svg.append(overlay);
  const tip = element("div", chart);
  tip.className = "tip";
  tip.setAttribute("role", "status");
  tip.hidden = true;
  let at = 0;

  function mark(name, attributes) {
    const shape = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) shape.setAttribute(key, value);
    overlay.append(shape);
  }

  function show(x) {
    const center = nearest(all, x);
    const told = series.map((one) => [one, toldOf(one.points, center)]).filter(([, point]) => point);
    overlay.replaceChildren();
    tip.replaceChildren();
    const heights = all.map((point) => point[1]);
    mark("line", { x1: center[0], x2: center[0], y1: Math.min(...heights), y2: Math.max(...heights),
      style: "stroke: var(--pale); stroke-dasharray: 2 2" });
    element("div", tip, `${label} ${center[2]}`).className = "faint";
    for (const [one, point] of told) {
      mark("circle", { cx: point[0], cy: point[1], r: 3.5, style: `fill: ${one.color}; stroke: var(--paper)` });
      const row = element("div", tip);
      element("i", row).style.background = one.color;
      row.append(`${one.name} `);
      element("b", row, point[3]);
    }
    tip.hidden = false;
    const scale = svg.clientWidth / svg.viewBox.baseVal.width, place = center[0] * scale;
    const left = place > svg.clientWidth / 2 ? place - tip.offsetWidth - 12 : place + 12;
    tip.style.left = `${Math.max(0, Math.min(left, svg.clientWidth - tip.offsetWidth))}px`;
    at = places.indexOf(center[0]);
  }

  function hide() {
    overlay.replaceChildren();
    tip.hidden = true;
  }

  function follow(event) {
    const box = svg.getBoundingClientRect();
    show((event.clientX - box.left) * svg.viewBox.baseVal.width / box.width);
  }

  chart.addEventListener("pointermove", follow);
  chart.addEventListener("pointerdown", follow);
  // A finger that was lifted leaves the values in place, until another chart is touched.
  chart.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hide());
  chart.tabIndex = 0;
  chart.addEventListener("focus", () => chart.matches(":focus-visible") && show(places[at]));
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const last = places.length - 1;
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") hide();
    if (next === undefined) return;
    event.preventDefault();
    show(places[Math.max(0, Math.min(last, next))]);
  });
}

document.querySelectorAll("figure[data-values]").forEach(attach);
