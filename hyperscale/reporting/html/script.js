"use strict";
(() => {
  const root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });

  const make = (name, attributes) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  // Points are sorted by x: [x, y, shown value, shown x].
  const nearest = (points, x) => {
    let low = 0, high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < x) low = middle; else high = middle;
    }
    return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
  };

  for (const svg of document.querySelectorAll("svg[data-plot]")) {
    let lines = null, tip = null, marks = [];
    const clear = () => {
      for (const mark of marks) mark.remove();
      marks = [];
      if (tip) tip.remove();
      tip = null;
    };
    const show = (event) => {
      lines ??= JSON.parse(svg.dataset.plot).filter((line) => line.points.length);
      clear();
      if (!lines.length) return;
      const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
      const found = lines.map((line) => [line, nearest(line.points, (event.clientX - box.left) / box.width * view.width)]);
      const x = found[0][1][0];
      marks.push(make("line", { class: "cursor", x1: x, x2: x, y1: 12, y2: view.height - 28 }));
      tip = document.createElement("div");
      tip.className = "tip";
      const row = (left, right) => {
        const div = document.createElement("div");
        for (const part of [left, right]) {
          const span = document.createElement("span");
          span.textContent = part;
          div.append(span);
        }
        tip.append(div);
      };
      row(found[0][1][3], "");
      for (const [line, point] of found) {
        row(line.label, point[2]);
        marks.push(make("circle", { class: "at " + line.css, cx: point[0], cy: point[1], r: 4 }));
      }
      svg.append(...marks);
      const figure = svg.closest("figure");
      figure.append(tip);
      const at = x / view.width * box.width + svg.getBoundingClientRect().left - figure.getBoundingClientRect().left;
      const onLeft = at > box.width / 2;
      tip.style.left = (onLeft ? at - tip.offsetWidth - 12 : at + 12) + "px";
      tip.style.top = "48px";
    };
    svg.addEventListener("pointermove", show);
    svg.addEventListener("pointerdown", show);
    svg.addEventListener("pointerleave", clear);
  }
})();
