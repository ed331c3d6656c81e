"""The style sheet of the HTML report; on paper always the light one."""

STYLE = """\
:root {
  --paper: #ffffff; --ink: #1c2126; --faint: #667079; --line: #d9dee3; --wash: #f4f6f8;
  --pass: #1a7f37; --fail: #c62828; --unknown: #9a6700;
  --s0: #0b63ce; --s1: #c2570c; --s2: #6d3fc0; --s3: #0f766e; --band: #1a7f3722;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14181c; --ink: #e4e8eb; --faint: #98a3ad; --line: #333b43; --wash: #1c2227;
    --pass: #4cc26a; --fail: #ff7b72; --unknown: #e0b040;
    --s0: #6cb0ff; --s1: #ff9d57; --s2: #b99bff; --s3: #4fd1c5; --band: #4cc26a22;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 24px 20px 64px; }
header { border-left: 6px solid var(--unknown); background: var(--wash); padding: 14px 20px; }
header.pass { border-color: var(--pass); }
header.fail { border-color: var(--fail); }
header p { margin: 0; color: var(--faint); }
header.pass h1 { color: var(--pass); }
header.fail h1 { color: var(--fail); }
header.inconclusive h1 { color: var(--unknown); }
h1 { margin: 4px 0; font-size: 30px; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 40px 0 12px; padding-bottom: 4px; border-bottom: 1px solid var(--line); font-size: 20px; }
h3 { margin: 24px 0 6px; font-size: 15px; }
ul { margin: 6px 0; padding-left: 20px; }
h2, code { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 7.5em 1fr; gap: 3px 16px; margin: 12px 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--faint); font-weight: 500; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td { max-width: 36em; overflow-wrap: break-word; }
.figure { text-align: right; }
.figure, .short { white-space: nowrap; }
td.pass { color: var(--pass); }
td.fail { color: var(--fail); font-weight: 700; }
td.unknown { color: var(--unknown); }
details { margin: 14px 0; }
summary { cursor: pointer; color: var(--faint); }
figure { margin: 20px 0; }
figcaption { color: var(--faint); }
.key { margin-left: 14px; }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; margin: 0 5px 4px 0; }
.key::before { background: currentColor; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
svg { display: block; width: 100%; height: auto; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .tick { fill: var(--faint); font: 11px system-ui, sans-serif; }
svg .band { fill: var(--band); }
svg .limit { stroke: var(--fail); stroke-dasharray: 5 4; }
svg .mark { stroke: var(--unknown); stroke-width: 1.5; }
svg .mean { fill: none; stroke: currentColor; stroke-width: 1.5; stroke-linejoin: round; }
svg .spread { fill: currentColor; opacity: 0.16; }
svg .dot { fill: currentColor; }
@media print {
  main { max-width: none; padding: 0; }
  header, td, th { print-color-adjust: exact; }
  h2, h3, figure { break-after: avoid; }
  figure, tr { break-inside: avoid; }
}
"""
