"""The page: a table that renews itself."""

from __future__ import annotations

from sat_slime.report.css import WIDE_STYLE

RENEW_MS = 2000

_STYLE = """
table td, table th { white-space: nowrap; text-align: left; }
table td:last-child { white-space: nowrap; }
tbody th { font-weight: 400; white-space: normal; overflow-wrap: anywhere; min-width: 9rem; }
tbody tr:first-child th { color: inherit; }
tbody tr.grid th { font-weight: 600; }
.bar { display: inline-block; width: 6em; height: .6em; background: #8884; border-radius: .3em; }
.bar i { display: block; height: 100%; background: #0072b2; border-radius: .3em; }
.running { color: #009e73; } .failed, .killed { color: #d55e00; }
button { font: inherit; padding: .3em .8em; }
@media (max-width: 40rem) {
  .bar, tr:not(.grid) :is(td, th):nth-child(6) { display: none; } /* the seed, which the run's name tells too */
}
"""

_SCRIPT = """
const ticked = new Set(), open = new Set();
const number = (value, digits) => value == null ? "" : Number(value).toFixed(digits);
function cell(row, content, tag = "td") {
  const made = row.appendChild(document.createElement(tag));
  if (content instanceof Node) made.append(content); else made.textContent = content;
  return made;
}
function tick(path) {
  const box = document.createElement("input");
  box.type = "checkbox"; box.checked = ticked.has(path); box.ariaLabel = "compare " + path;
  box.onchange = () => { box.checked ? ticked.add(path) : ticked.delete(path); buttons(); };
  return box;
}
function link(entry) {
  const made = document.createElement("a");
  made.textContent = entry.path;
  const path = entry.path.split("/").map(encodeURIComponent).join("/");
  made.href = entry.report ? "/files/" + path + "/report.html" : "/compare?run=" + encodeURIComponent(entry.path);
  return made;
}
function progress(entry) {
  const made = document.createElement("span");
  if (entry.step == null) return made;
  const bar = made.appendChild(document.createElement("span")); bar.className = "bar";
  const done = bar.appendChild(document.createElement("i"));
  done.style.width = (100 * Math.min(1, entry.step / (entry.steps || entry.step))) + "%";
  made.append(" " + entry.step + (entry.steps ? " of " + entry.steps : ""));
  return made;
}
function addRun(table, entry) {
  const row = table.appendChild(document.createElement("tr"));
  cell(row, tick(entry.path)); cell(row, link(entry), "th");
  cell(row, entry.status).className = entry.status.replace(" ", "-");
  cell(row, entry.method); cell(row, entry.lag ?? ""); cell(row, entry.seed ?? "");
  cell(row, progress(entry)); cell(row, number(entry.reward, 3)); cell(row, number(entry.accuracy, 3));
  cell(row, number(entry.d_pi, 4)); cell(row, (entry.started || "").slice(0, 16).replace("T", " "));
}
function addGrid(table, entry) {
  const row = table.appendChild(document.createElement("tr")); row.className = "grid";
  cell(row, tick(entry.path));
  const name = cell(row, link(entry), "th");
  const more = name.appendChild(document.createElement("button"));
  more.textContent = open.has(entry.path) ? "fold" : "runs"; more.style.marginLeft = ".6em";
  more.onclick = () => { open.has(entry.path) ? open.delete(entry.path) : open.add(entry.path); show(last); };
  cell(row, entry.status).className = entry.status.replace(" ", "-");
  const done = entry.runs.filter(run => run.status === "finished").length;
  const text = cell(row, done + " of " + entry.runs.length + " runs finished"); text.colSpan = 7;
  cell(row, (entry.started || "").slice(0, 16).replace("T", " "));
  if (open.has(entry.path)) entry.runs.forEach(run => addRun(table, run));
}
let last = [];
function show(entries) {
  last = entries;
  const table = document.createElement("tbody");
  entries.forEach(entry => entry.kind === "grid" ? addGrid(table, entry) : addRun(table, entry));
  document.querySelector("tbody").replaceWith(table);
  document.getElementById("none").hidden = entries.length > 0;
}
function buttons() {
  const chosen = document.getElementById("compare");
  chosen.disabled = !ticked.size;
  chosen.textContent = ticked.size ? "Compare " + ticked.size : "Compare";
  const runs = [...ticked].map(run => "run=" + encodeURIComponent(run)).join("&");
  chosen.onclick = () => {
    chosen.disabled = true; chosen.textContent = "Drawing, up to a minute ...";
    location = "/compare?" + runs;
  };
}
async function renew() {
  try {
    show(await (await fetch("/entries")).json());
    document.getElementById("state").textContent = "";
  } catch { document.getElementById("state").textContent = "the server does not answer: sat-slime serve"; }
  setTimeout(renew, RENEW_MS);
}
addEventListener("pageshow", buttons); renew();
"""

_HEADINGS = ("", "run", "state", "method", "lag", "seed", "step", "reward", "accuracy", "d_pi", "started")

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sat-slime</title>
<style>{WIDE_STYLE}{_STYLE}</style>
</head>
<body>
<h1>Runs</h1>
<p>Each name leads to its report. Tick runs or grids to compare them. <span id="state"></span></p>
<p><button id="compare">Compare</button></p>
<div class="wide"><table>
<thead><tr>{"".join(f"<th>{text}</th>" for text in _HEADINGS)}</tr></thead>
<tbody></tbody>
</table></div>
<p id="none" hidden>No run and no grid is here yet.</p>
<script>{_SCRIPT.replace("RENEW_MS", str(RENEW_MS))}</script>
</body>
</html>
"""
"""It asks for /entries every two seconds; all that it shows of them is text, never markup."""
