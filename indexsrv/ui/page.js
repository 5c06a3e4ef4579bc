// SPDX-License-Identifier: Apache-2.0
"use strict";

// The page asks /ui/data once a second and shows what it says. Whatever comes from
// the host is set as text, never as markup.

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
let before = null;

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) { n /= 1024; u++; }
  return (u === 0 ? n : n.toFixed(n < 10 ? 2 : 1)) + " " + units[u];
}

function micros(us) {
  if (us >= 1e6) return us / 1e6 + " s";
  if (us >= 1e3) return us / 1e3 + " ms";
  return us + " µs";
}

function cell(row, text, kind) {
  const td = row.insertCell();
  if (text instanceof Node) td.append(text); else td.textContent = text;
  if (kind) td.className = kind;
  return td;
}

function share(value, of, label) {
  const m = document.createElement("meter");
  m.max = Math.max(of, 1);
  m.value = value;
  m.title = label;
  m.setAttribute("aria-label", label);
  return m;
}

function percent(part, of) { return of > 0 ? (100 * part / of).toFixed(1) + " %" : "–"; }

// The bound under which a share of the durations between two readings lies.
function quantile(bounds, counts, q) {
  const all = counts.reduce((a, b) => a + b, 0);
  if (all === 0) return "–";
  let sum = 0;
  for (let i = 0; i < counts.length; i++) {
    sum += counts[i];
    if (sum >= q * all) return i < bounds.length ? "≤ " + micros(bounds[i]) : "> " + micros(bounds[bounds.length - 1]);
  }
  return "–";
}

function rows(id, list, fill) {
  const body = document.createElement("tbody");
  for (const item of list) fill(body, item);
  if (list.length === 0) {
    const td = cell(body.insertRow(), "nothing yet", "dim");
    td.colSpan = document.querySelectorAll("#" + id + " th").length;
  }
  $(id).tBodies[0].replaceWith(body);
}

function showWorkers(d, total) {
  rows("workers", d.workers, (body, w) => {
    const ranks = Object.entries(w.listeners).sort((a, b) => a[0] - b[0]);
    ranks.forEach(([rank, l], i) => {
      const row = body.insertRow();
      cell(row, i ? "" : w.model_name + (w.routing_group === "default" ? "" : " / " + w.routing_group));
      cell(row, i ? "" : String(w.instance_id), "mono");
      cell(row, rank);
      cell(row, l.status, l.status);
      cell(row, l.last_seq === null ? "–" : number.format(l.last_seq), "n");
      cell(row, number.format(l.gaps), "n");
      cell(row, number.format(l.lost_batches), "n");
      cell(row, number.format(l.restarts), "n");
      cell(row, number.format(l.orphans), "n");
      cell(row, number.format(l.memberships), "n");
      cell(row, share(l.memberships, total, percent(l.memberships, total) + " of all memberships"));
      cell(row, i ? "" : w.hits > 0 ? (w.hit_blocks / w.hits).toFixed(1) : "–", "n");
      cell(row, l.last_error, "why");
    });
  });
}

function showLatency(d, counts) {
  const box = $("latency");
  const list = [];
  const most = Math.max(...counts, 1);
  const first = counts.findIndex((n) => n > 0);
  const last = counts.findLastIndex((n) => n > 0);
  for (let i = Math.max(first, 0); i <= last; i++) {
    const line = document.createElement("div");
    const label = document.createElement("span");
    label.textContent = i < d.lookups.bounds_us.length ? "≤ " + micros(d.lookups.bounds_us[i]) : "more";
    const bar = document.createElement("progress");
    bar.max = most;
    bar.value = counts[i];
    bar.setAttribute("aria-label", label.textContent);
    const n = document.createElement("span");
    n.textContent = number.format(counts[i]);
    line.append(label, bar, n);
    list.push(line);
  }
  if (list.length === 0) {
    const none = document.createElement("span");
    none.className = "dim";
    none.textContent = "no lookup yet";
    list.push(none);
  }
  box.replaceChildren(...list);
}

function show(d) {
  const streams = Object.values(d.streams).reduce((a, b) => a + b, 0);
  const held = d.memory.reduce((a, s) => a + s.memberships, 0);
  const taken = d.memory.reduce((a, s) => a + Object.values(s.bytes).reduce((x, y) => x + y, 0), 0);
  $("what").textContent = d.version + ", " + d.index + " index";
  $("t-workers").textContent = number.format(d.workers.length);
  $("t-streams").textContent = (d.streams.active || 0) + " / " + streams;
  $("t-memberships").textContent = number.format(held);
  $("t-bytes").textContent = bytes(taken);
  $("t-hit").textContent = percent(d.lookups.deepest_blocks, d.lookups.blocks);
  let recent = d.lookups.buckets;
  if (before && d.time > before.time && d.lookups.count >= before.lookups.count) {
    $("t-rate").textContent = number.format(Math.round((d.lookups.count - before.lookups.count) * 1000 / (d.time - before.time)));
    if (d.lookups.count > before.lookups.count) recent = recent.map((n, i) => n - before.lookups.buckets[i]);
  }
  $("t-p50").textContent = quantile(d.lookups.bounds_us, recent, 0.5);
  $("t-p99").textContent = quantile(d.lookups.bounds_us, recent, 0.99);
  showWorkers(d, held);
  showLatency(d, d.lookups.buckets);
  rows("memory", d.memory, (body, s) => {
    const row = body.insertRow();
    const all = Object.values(s.bytes).reduce((a, b) => a + b, 0);
    cell(row, s.node, "n");
    cell(row, s.shard, "n");
    cell(row, number.format(s.memberships), "n");
    cell(row, number.format(s.blocks), "n");
    cell(row, bytes(all), "n").title = Object.entries(s.bytes).map(([k, v]) => k + " " + bytes(v)).join(", ");
    cell(row, s.bound_bytes ? share(s.used_bytes, s.bound_bytes, bytes(s.used_bytes) + " of " + bytes(s.bound_bytes)) : "no bound");
    cell(row, number.format(s.refused_workers), "n");
  });
  rows("prefixes", d.prefixes, (body, p) => {
    const row = body.insertRow();
    cell(row, p.model_name + (p.routing_group === "default" ? "" : " / " + p.routing_group));
    cell(row, p.hash, "mono");
    cell(row, p.blocks, "n");
    cell(row, p.least === p.lookups ? number.format(p.lookups) : number.format(p.least) + " to " + number.format(p.lookups), "n");
    cell(row, share(p.lookups, d.lookups.sampled, percent(p.lookups, d.lookups.sampled) + " of the sampled lookups"));
    cell(row, number.format(p.holders), "n");
  });
  if (!before || d.time !== before.time) before = d;
}

function trouble(text) {
  $("trouble").hidden = text === "";
  $("trouble").textContent = text;
  $("standing").textContent = text === "" ? "live" : "stale";
  $("standing").className = text === "" ? "active" : "failed";
}

async function tick() {
  try {
    const token = sessionStorage.getItem("token");
    const answer = await fetch("/ui/data", {
      headers: token ? { Authorization: "Bearer " + token } : {}, signal: AbortSignal.timeout(5000), cache: "no-store",
    });
    if (answer.status === 401 || answer.status === 403) $("token-form").hidden = false;
    if (!answer.ok) {
      const why = await answer.json().catch(() => ({}));
      trouble(why.error || "the host answered " + answer.status);
    } else {
      show(await answer.json());
      trouble("");
    }
  } catch (e) {
    trouble("the host does not answer: " + e.message);
  }
  setTimeout(tick, 1000);
}

$("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("token").value = "";
  $("token-form").hidden = true;
});

tick();
