// Lines over time on a canvas: enough for the page, and nothing to load from elsewhere.

import { made } from "./shown.js";

const COLORS = ["#3987e5", "#d95926", "#2f9e6e", "#a065d8", "#c98500", "#c2477f"];
const LEFT = 58, BOTTOM = 16, TOP = 6;

// Draws `series`, a list of {name, values}, over `times` (ms). `show` makes a text of a value. The
// element before the canvas gets the names, with the newest values.
// A value that is null leaves a gap.
export function plot(canvas, times, series, show) {
  const scale = devicePixelRatio, width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const paper = canvas.getContext("2d");
  paper.scale(scale, scale);
  paper.font = "11px system-ui, sans-serif";
  paper.lineWidth = 1.5;
  const faint = getComputedStyle(canvas).color; // computed: a canvas takes no light-dark()
  const legend = canvas.previousElementSibling;
  if (!series.length) {
    legend.replaceChildren();
    paper.fillStyle = faint;
    paper.fillText("none", LEFT, height / 2);
    return;
  }
  const first = times[0], last = times[times.length - 1];
  const highest = Math.max(...series.flatMap((line) => line.values.filter((value) => value !== null)), 0) || 2;
  const x = (time) => LEFT + ((width - LEFT - 4) * (time - first)) / Math.max(last - first, 1);
  const y = (value) => height - BOTTOM - ((height - BOTTOM - TOP) * value) / highest;

  paper.fillStyle = paper.strokeStyle = faint;
  paper.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    paper.fillText(show(highest * part), LEFT - 6, y(highest * part) + 4);
    paper.globalAlpha = 0.25;
    paper.fillRect(LEFT, y(highest * part), width - LEFT - 4, 1);
    paper.globalAlpha = 1;
  }
  paper.fillText("now", width - 4, height - 3);
  paper.textAlign = "left";
  paper.fillText(ago(last - first), LEFT, height - 3);

  legend.replaceChildren(...series.map((line, number) => {
    const now = line.values[line.values.length - 1];
    const entry = made("span", `${line.name} ${now === null ? "–" : show(now)}`);
    entry.style.color = paper.strokeStyle = COLORS[number % COLORS.length];
    paper.beginPath();
    let pen = false;
    line.values.forEach((value, index) => {
      if (value === null) pen = false;
      else if (pen) paper.lineTo(x(times[index]), y(value));
      else {
        paper.moveTo(x(times[index]), y(value));
        pen = true;
      }
    });
    paper.stroke();
    return entry;
  }));
}

function ago(ms) {
  return ms < 120_000 ? `${Math.round(ms / 1000)} s ago` : `${Math.round(ms / 60_000)} min ago`;
}
