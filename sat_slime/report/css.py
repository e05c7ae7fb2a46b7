"""How the pages look."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --dim: #5f6368; --paper: #fdfdfc; --rule: #dcdcd8; --accent: #0072b2;
  --warn: #fff4dc; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e3; --dim: #a0a4a8; --paper: #17181a; --rule: #3a3c40;
  --accent: #56b4e9; --warn: #3a3016; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 46rem; padding: 2rem 1.1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 0 0 .3rem; }
.subtitle { color: var(--dim); margin: .2rem 0 1.4rem; }
.status { border: 1px solid var(--rule); border-radius: 1rem; padding: .05rem .6rem; margin-left: .5rem; }
.summary p { margin: .35rem 0; overflow-wrap: anywhere; }
.warnings { background: var(--warn); border-left: 4px solid #e69f00; padding: .7rem 1rem .7rem 2rem; margin: 1.2rem 0; }
.wide { overflow-x: auto; margin: 1.4rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .4rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; font-weight: 400; white-space: normal; padding-left: 0; }
tr:first-child th { color: var(--dim); font-weight: 400; }
figure { margin: 2.4rem 0 0; }
figure p { margin: 0 0 .7rem; color: var(--dim); font-size: .95rem; }
figure img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--rule);
  border-radius: 6px; padding: .5rem; }
figure.drawn img { display: none; }
.live.live { display: block; max-width: 54rem; overflow: hidden; touch-action: pan-y; }
.live svg { display: block; font-variant-numeric: tabular-nums; }
@media (prefers-color-scheme: dark) { .live svg { filter: brightness(1.2); } }
.live .vega-bindings { font-size: .85rem; }
.live .vega-bind { display: flex; gap: .6rem; align-items: center; }
.live input[type=range] { flex: 1; max-width: 28rem; min-width: 8rem; }
#vg-tooltip-element { font: 13px/1.4 system-ui, sans-serif; background: var(--paper); color: var(--ink);
  border: 1px solid var(--rule); padding: .4rem .6rem; max-width: 20rem; }
#vg-tooltip-element table tr td.key { color: var(--dim); max-width: 9rem; }
#vg-tooltip-element table tr td.value { max-width: 14rem; white-space: normal; }
.how { color: var(--dim); font-size: .9rem; margin: 1.6rem 0 0; }
figcaption { font-size: .85rem; margin-top: .3rem; }
a { color: var(--accent); }
details { margin-top: 2.6rem; }
summary { cursor: pointer; font-weight: 600; }
pre { overflow-x: auto; font-size: .82rem; line-height: 1.45; border: 1px solid var(--rule); border-radius: 6px;
  padding: .8rem; }
@media print {
  :root { color-scheme: light; --ink: #1c1c1c; --dim: #5f6368; --paper: #fff; --rule: #dcdcd8; --accent: #0072b2;
    --warn: #fff4dc; }
  figure, table { break-inside: avoid; }
  figure.drawn img { display: block; }
  .live, .how { display: none !important; }
  details > :not(summary) { display: none; }
}
"""
"""The page of a single run: one column, with pictures as wide as the column."""

WIDE_STYLE = (
    STYLE
    + """
body { max-width: 68rem; }
section { margin-top: 2.6rem; }
section > p, figure p { margin: 0 0 .7rem; color: var(--dim); font-size: .95rem; }
figure img { max-width: 40rem; }
th.group { text-align: center; color: var(--ink); font-weight: 600; border-left: 1px solid var(--rule); }
th:first-child { position: sticky; left: 0; background: var(--paper); }
th[scope=row] { min-width: 10.5rem; }
tr.head th { color: var(--dim); font-weight: 400; }
@media (min-width: 40rem) { tr.head th { white-space: normal; } }
tr.part th { text-align: left; font-weight: 600; padding-top: .8rem; }
table { font-size: .85rem; }
td { white-space: pre-line; }
td + td { white-space: pre; }
td:last-child { white-space: pre-line; }
.files { font-size: .85rem; margin: .4rem 0 0; overflow-wrap: anywhere; }
code { font-size: .92em; }
nav { columns: 14rem auto; font-size: .92rem; margin: 1.4rem 0 0; }
nav a { display: block; }
@media (max-width: 40rem) {
  th[scope=row] { min-width: 6.5rem; max-width: 7.5rem; }
  body { padding: 1.2rem .8rem 3rem; }
  table { font-size: .8rem; }
}
"""
)
"""Every other page: wide tables and a list of contents."""
