// Draws each figure when it comes near the screen, as wide as its place, and keeps it so.
"use strict";

// The rows of a data set that stands by columns, some of them as {of: values, at: their numbers}.
function unpacked(columns) {
  const plain = Object.entries(columns).map(([name, one]) => [name, Array.isArray(one) ? one : one.at.map((i) => one.of[i])]);
  return plain.length ? plain[0][1].map((_, i) => Object.fromEntries(plain.map(([name, one]) => [name, one[i]]))) : [];
}

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
