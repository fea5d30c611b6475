"use strict";

// A click on the name of a column sorts by it; another one turns the order round. Rows without a value stay at the end.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const column = [...head.parentNode.children].indexOf(head);
    const body = head.closest("table").tBodies[0];
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const second = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    const sign = order === "ascending" ? 1 : -1;
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      return { row, text: cell.textContent.trim(), number: parseFloat(cell.dataset.key ?? cell.textContent) };
    });
    keyed.sort((a, b) => {
      if (!a.text || !b.text) return !a.text - !b.text;
      if (head.classList.contains("number")) {
        if (isNaN(a.number) || isNaN(b.number)) return isNaN(a.number) - isNaN(b.number);
        return sign * (a.number - b.number);
      }
      return sign * a.text.localeCompare(b.text, undefined, { numeric: true });
    });
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    body.append(...keyed.map((one) => one.row));
  });
}

// The values of an epoch, where the pointer or the arrow keys are.
for (const svg of document.querySelectorAll("svg[data-epochs]")) {
  const output = svg.parentNode.querySelector("output");
  const here = svg.querySelector(".here");
  const epochs = JSON.parse(svg.dataset.epochs);
  const lines = [...svg.querySelectorAll("[data-values]")].map((line) => ({
    name: line.dataset.name,
    values: JSON.parse(line.dataset.values),
  }));
  const [left, right] = JSON.parse(svg.dataset.span);
  const low = epochs[0];
  const range = epochs[epochs.length - 1] - low || 1;
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(epochs.length - 1, index));
    const share = epochs.length > 1 ? (epochs[at] - low) / range : 0.5;
    const x = left + share * (right - left);
    here.setAttribute("x1", x);
    here.setAttribute("x2", x);
    here.removeAttribute("visibility");
    const values = lines.filter((line) => line.values[at] !== null);
    output.textContent =
      `epoch ${epochs[at]}: ` + (values.map((line) => `${line.name} ${line.values[at]}`).join(", ") || "no value");
  };
  const hide = () => {
    at = -1;
    here.setAttribute("visibility", "hidden");
    output.textContent = "";
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const wanted = low + ((x - left) / (right - left)) * range;
    let nearest = 0;
    epochs.forEach((epoch, i) => {
      if (Math.abs(epoch - wanted) < Math.abs(epochs[nearest] - wanted)) nearest = i;
    });
    show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(at < 0 ? (step > 0 ? 0 : epochs.length - 1) : at + step);
  });
}

// A picture takes the whole width, and gives it back.
for (const button of document.querySelectorAll(".pictures button")) {
  button.addEventListener("click", () => {
    const isWhole = button.closest("figure").classList.toggle("whole");
    button.setAttribute("aria-expanded", isWhole);
  });
}

// A run that is killed can not say so: its page tells how long there has been no news.
for (const note of document.querySelectorAll("[data-updated]")) {
  const silent_s = Date.now() / 1000 - Number(note.dataset.updated);
  if (silent_s > Number(note.dataset.limit)) {
    const text = silent_s > 7200 ? `${Math.round(silent_s / 3600)} hours` : `${Math.round(silent_s / 60)} minutes`;
    note.textContent = `No news for ${text}: the training may have been killed.`;
    note.hidden = false;
  }
}
