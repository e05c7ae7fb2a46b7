// Draws each figure when it comes near the screen, as wide as its place, and keeps it so.
"use strict";

// The rows of a data set that stands by columns, some of them as {of: values, at: their numbers}.
function unpacked(columns) {
  const plain = Object.entries(columns).map(([name, one]) => [name, Array.isArray(one) ? one : one.at.map((i) => one.of[i])]);
  return plain.length ? plain[0][1].map((_, i) => Object.fromEntries(plain.map(([name, one]) => [name, one[i]]))) : [];
}

const MOST_TOLD = 8; // lines whose values are told at once
const ERRORS = 1; // the level of Vega at which only these are logged

// How many panels stand side by side: as many as the figure has, where there is room.
function across(figure, room) {
  return Math.max(1, Math.min(figure.spec.usermeta.columns, Math.floor(room / 170)));
}

// Draws the figure anew, its panels `width` wide.
async function draw(figure, room, columns, width) {
  const spec = structuredClone(figure.spec);
  for (const part of spec.vconcat) if (part.columns) part.columns = columns;
  spec.params.find((one) => one.name === "room").value = room;
  spec.config.view.continuousWidth = spec.config.view.discreteWidth = width;
  // ast: expressions are interpreted, so that the page needs no right to evaluate code
  const options = { actions: false, ast: true, renderer: "svg", logLevel: ERRORS, tooltip: { offsetY: 14 } };
  figure.view = (await vegaEmbed(figure.querySelector(".live"), spec, options)).view;
  figure.columns = columns;
  const told = figure.view.tooltip();
  figure.view.tooltip((handler, event, item, value) => { if (!isStep(item)) told(handler, event, item, value); });
  figure.view.addEventListener("pointermove", (event) => snap(figure, event));
  await figure.view.runAsync(); // another tooltip empties the figure
  figure.querySelector(".live").onpointerleave = () => leave(figure);
}

// Whether an item is an unseen point of a line over steps.
function isStep(item) {
  return item?.mark?.marktype === "symbol" && item.opacity === 0 && item.tooltip &&
    Object.keys(item.tooltip).some((name) => /step$|^updates/.test(name));
}

// The unseen points below a mark, with the place of their panel in the figure.
function points(mark, x, y, panel, found) {
  for (const item of mark.items) {
    if (mark.marktype === "group") {
      const here = item.width ? { x: x + item.x, y: y + item.y, width: item.width, height: item.height } : panel;
      for (const part of item.items) points(part, x + item.x, y + item.y, here, found);
    } else if (isStep(item)) found.push({ x: x + item.x, tooltip: item.tooltip, panel });
  }
  return found;
}

// Tells the values of all lines at the step nearest to the pointer.
function snap(figure, event) {
  const place = figure.querySelector(".live"), svg = place.querySelector("svg").getBoundingClientRect();
  const [left, top] = figure.view.origin(), padding = figure.view.padding();
  const x = event.clientX - svg.left - left - padding.left, y = event.clientY - svg.top - top - padding.top;
  const inside = points(figure.view.scenegraph().root, 0, 0, null, []).filter(({ panel }) =>
    panel && x >= panel.x && x <= panel.x + panel.width && y >= panel.y && y <= panel.y + panel.height);
  if (!inside.length) return leave(figure);
  const nearest = inside.reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
  const rule = place.querySelector(".snap") ?? place.appendChild(document.createElement("div"));
  rule.className = "snap";
  const at = place.getBoundingClientRect();
  rule.style.left = `${svg.left - at.left + left + padding.left + nearest.x}px`;
  rule.style.top = `${svg.top - at.top + top + padding.top + nearest.panel.y}px`;
  rule.style.height = `${nearest.panel.height}px`;
  tell(inside.filter((one) => Math.abs(one.x - nearest.x) < 0.5).map((one) => one.tooltip), event);
}

// Shows tooltips below each other; what they hold is text, never markup.
function tell(tooltips, event) {
  let box = document.getElementById("vg-tooltip-element");
  if (!box) {
    box = document.body.appendChild(document.createElement("div"));
    box.id = "vg-tooltip-element";
  }
  const table = document.createElement("table");
  for (const one of tooltips.slice(0, MOST_TOLD)) for (const [name, value] of Object.entries(one)) {
    const row = table.appendChild(document.createElement("tr"));
    for (const [kind, text] of [["key", name], ["value", String(value)]]) {
      const cell = row.appendChild(document.createElement("td"));
      cell.className = kind;
      cell.textContent = text;
    }
  }
  box.replaceChildren(table);
  box.className = "vg-tooltip visible";
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${event.clientX + 14 + width > innerWidth ? Math.max(0, event.clientX - width - 14) : event.clientX + 14}px`;
  box.style.top = `${Math.max(0, Math.min(event.clientY + 14, innerHeight - height))}px`;
}

function leave(figure) {
  if (!figure.querySelector(".snap")) return;
  figure.querySelector(".snap").remove();
  document.getElementById("vg-tooltip-element")?.classList.remove("visible");
}

// Gives the panels of a drawn figure another width.
async function resize(figure, room, width) {
  const view = figure.view.signal("room", room);
  const widths = view.getState({ signals: (name) => /width$/i.test(name) && view.signal(name) > 30 }).signals;
  for (const name in widths) view.signal(name, width);
  await view.resize().runAsync();
}

// Makes the panels so wide that the figure fills its place. What axes take is known only once they are drawn.
async function show(figure) {
  const room = Math.floor(figure.querySelector(".live").getBoundingClientRect().width);
  if (room === figure.room) return;
  figure.room = room;
  figure.spec ??= JSON.parse(figure.querySelector("script").textContent, (key, value) =>
    key === "datasets" ? Object.fromEntries(Object.entries(value).map(([name, one]) => [name, unpacked(one)])) : value);
  const columns = across(figure, room);
  const facets = figure.spec.vconcat.some((part) => part.columns); // Vega does not measure them again
  let width = room / columns - 64, drawn = figure.columns === columns;
  for (let attempt = 0; attempt < 4; attempt++) {
    await (drawn && !facets ? resize(figure, room, width) : draw(figure, room, columns, width));
    const over = figure.querySelector(".live svg").getBoundingClientRect().width - room;
    if (over <= 0 && over > -12) break;
    width = Math.max(40, width - Math.ceil(over / columns));
    drawn = true;
  }
  figure.classList.add("drawn");
}

let last = Promise.resolve(); // one at a time, so that the page stays fluent
const enqueue = (figure) => { last = last.then(() => show(figure)).catch((error) => console.error(figure.id, error)); };
const near = new IntersectionObserver((seen) => seen.forEach((one) => {
  one.target.near = one.isIntersecting;
  if (one.isIntersecting) enqueue(one.target);
}), { rootMargin: "600px" });
const resized = new ResizeObserver((seen) => seen.forEach((one) => {
  const figure = one.target.closest("figure");
  if (figure.near) enqueue(figure);
}));
for (const figure of document.querySelectorAll("figure")) {
  near.observe(figure);
  resized.observe(figure.querySelector(".live"));
}
