"use strict";
// What makes the page handier: sorting tables, zooming into the flame graph, following the flow.
// All of the content is there without it.

function sortable(table) {
  const body = table.tBodies[0], rows = Array.from(body.rows), heads = Array.from(table.tHead.rows[0].cells);
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.value;
    return value === undefined ? cell.textContent : Number(value);
  };
  const compare = (one, other) => {
    if (typeof one === "number" && typeof other === "number") return one - other;
    // Cells without a number come last of the numbers.
    if (typeof one !== typeof other) return typeof one === "number" ? 1 : -1;
    return one.localeCompare(other, "en", { numeric: true });
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? second : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const place = new Map(rows.map((row, index) => [row, index]));
      const sorted = rows.slice().sort((one, other) =>
        sign * compare(key(one, column), key(other, column)) || place.get(one) - place.get(other));
      body.append(...sorted);
    });
  });
}

function flame(graph) {
  const detail = graph.parentElement.querySelector(".flame-detail");
  const frames = Array.from(graph.querySelectorAll(".frame")).map((element) => ({
    element,
    parent: element.dataset.parent === "" ? null : Number(element.dataset.parent),
    left: parseFloat(element.getAttribute("x")),
    width: parseFloat(element.getAttribute("width")),
    children: [],
  }));
  frames.forEach((frame) => {
    frame.parent = frame.parent === null ? null : frames[frame.parent];
    if (frame.parent) frame.parent.children.push(frame);
  });
  const root = frames[0], of = new Map(frames.map((frame) => [frame.element, frame]));
  let zoomed = root, current = root;

  function shown(frame) {
    return !frame.element.hasAttribute("hidden");
  }
  function tell() {
    const above = zoomed === root ? "" : " — zoomed; Escape shows all";
    detail.textContent = current.element.getAttribute("aria-label") + above;
  }
  function go(frame, focus) {
    current.element.setAttribute("tabindex", "-1");
    current = frame;
    current.element.setAttribute("tabindex", "0");
    if (focus) current.element.focus();
    tell();
  }
  function zoom(frame) {
    zoomed = frame;
    const above = new Set();
    for (let at = frame.parent; at; at = at.parent) above.add(at);
    frames.forEach((other) => {
      const element = other.element;
      if (above.has(other)) {
        element.setAttribute("x", "0%");
        element.setAttribute("width", "100%");
        element.removeAttribute("hidden");
        return;
      }
      const left = (other.left - frame.left) / frame.width * 100, width = other.width / frame.width * 100;
      // Percentages are rounded: a frame beside the zoomed one may seem to reach into it.
      if (left < -0.01 || left >= 99.99 || left + width > 100.5) {
        element.setAttribute("hidden", "");
      } else {
        element.removeAttribute("hidden");
        element.setAttribute("x", left + "%");
        element.setAttribute("width", width + "%");
      }
    });
    go(frame, true);
  }
  function beside(frame, step) {
    const level = frames.filter((other) => shown(other) &&
      other.element.getAttribute("y") === frame.element.getAttribute("y"));
    level.sort((one, other) => one.left - other.left);
    return level[level.indexOf(frame) + step];
  }

  frames.forEach((frame) => frame.element.setAttribute("tabindex", frame === root ? "0" : "-1"));
  graph.addEventListener("click", (event) => {
    const frame = of.get(event.target.closest(".frame"));
    if (frame) zoom(frame === zoomed && frame.parent ? root : frame);
  });
  graph.addEventListener("focusin", (event) => {
    const frame = of.get(event.target);
    if (frame) go(frame, false);
  });
  graph.addEventListener("mouseover", (event) => {
    const frame = of.get(event.target.closest(".frame"));
    if (frame) detail.textContent = frame.element.getAttribute("aria-label");
  });
  graph.addEventListener("mouseleave", tell);
  graph.addEventListener("keydown", (event) => {
    let to = null;
    switch (event.key) {
      case "ArrowDown": to = current.children.find(shown); break;
      case "ArrowUp": to = current.parent; break;
      case "ArrowLeft": to = beside(current, -1); break;
      case "ArrowRight": to = beside(current, 1); break;
      case "Home": to = root; break;
      case "Enter": case " ": zoom(current); break;
      case "Escape": zoom(root); break;
      default: return;
    }
    event.preventDefault();
    if (to) go(to, true);
  });
}

function sankey(diagram) {
  const ribbons = Array.from(diagram.querySelectorAll(".ribbon"));
  function light(node) {
    ribbons.forEach((ribbon) => ribbon.classList.toggle("lit",
      node !== null && (ribbon.dataset.from === node.dataset.node || ribbon.dataset.to === node.dataset.node)));
    diagram.classList.toggle("dim", node !== null);
  }
  diagram.querySelectorAll(".node").forEach((node) => {
    node.addEventListener("focus", () => light(node));
    node.addEventListener("blur", () => light(null));
    node.addEventListener("mouseenter", () => light(node));
    node.addEventListener("mouseleave", () => light(null));
  });
  diagram.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && document.activeElement !== document.body) document.activeElement.blur();
  });
}

document.querySelectorAll("table.sortable").forEach(sortable);
document.querySelectorAll("svg.flame").forEach(flame);
document.querySelectorAll("svg.sankey").forEach(sankey);
document.documentElement.dataset.ready = "true";
