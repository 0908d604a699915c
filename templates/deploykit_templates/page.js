// Of every page: filtering tables, telling of kernels, moving about in the graph, copying commands. Without it the page
// has everything but that.
"use strict";
(() => {
  document.documentElement.classList.add("scripted");

  // Whatever is wider than its place is scrolled by the keyboard too.
  const reach = () => {
    for (const box of document.querySelectorAll(".scroll, pre")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "wider than the page");
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  };
  reach();
  addEventListener("resize", reach);

  for (const place of document.querySelectorAll(".copied")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    const text = place.textContent;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(place.firstElementChild);
        button.textContent = "selected";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    place.append(button);
  }

  // What is jumped to is not folded away. What is printed is what is open.
  const unfold = () => {
    const goal = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let place = goal; place; place = place.parentElement) if (place.tagName === "DETAILS") place.open = true;
    if (goal) goal.scrollIntoView();
  };
  unfold();
  addEventListener("hashchange", unfold);

  // A field that filters the rows of the table beside it; "/" leads to the first one, Escape shows everything again.
  for (const place of document.querySelectorAll("[data-filtered]")) {
    const field = place.querySelector(".filter");
    if (!field) continue;
    const rows = [...place.querySelectorAll("tbody tr")];
    const filter = () => {
      const words = field.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const left = rows.filter(row => {
        const told = row.textContent.toLowerCase();
        row.classList.toggle("unmatched", !words.every(word => told.includes(word)));
        return !row.classList.contains("unmatched");
      });
      place.classList.toggle("searching", words.length > 0);
      place.querySelector(".hits").textContent = words.length ? `${left.length} of ${rows.length}` : "";
    };
    field.addEventListener("input", filter);
    field.addEventListener("keydown", event => {
      if (event.key !== "Escape") return;
      field.value = "";
      filter();
    });
  }
  addEventListener("keydown", event => {
    const first = document.querySelector(".filter");
    if (event.key !== "/" || !first || /INPUT|TEXTAREA/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    first.focus();
  });

  // The kernel that is pointed at, or reached by the arrow keys, is told below, and all of its node are framed.
  const lanes = document.querySelector(".lanes");
  if (lanes) {
    const rows = [...lanes.querySelectorAll(".lane svg")].map(lane => [...lane.querySelectorAll("rect")]);
    const node = one => one.textContent.split("\n")[0];
    let [lane, at] = [0, -1];
    const tell = one => {
      for (const other of rows.flat()) other.classList.toggle("on", node(other) === node(one));
      lanes.querySelector(".told").textContent = one.textContent;
    };
    lanes.addEventListener("pointerover", event => event.target.tagName === "rect" && tell(event.target));
    lanes.addEventListener("keydown", event => {
      const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key] || 0;
      const down = { ArrowUp: -1, ArrowDown: 1 }[event.key] || 0;
      if (!across && !down) return;
      event.preventDefault();
      const before = rows[lane][at];
      lane = Math.min(Math.max(lane + down, 0), rows.length - 1);
      if (down && before) {
        const far = one => Math.abs(parseFloat(one.getAttribute("x")) - parseFloat(before.getAttribute("x")));
        at = rows[lane].reduce((best, one, place) => (far(one) < far(rows[lane][best]) ? place : best), 0);
      } else at = Math.min(Math.max(at + across, 0), rows[lane].length - 1);
      if (rows[lane][at]) tell(rows[lane][at]);
    });
  }

  const map = document.getElementById("map");
  if (!map) return;
  const whole = map.getAttribute("viewBox").split(" ").map(Number);
  let view = [...whole];
  const show = () => map.setAttribute("viewBox", view.join(" "));

  // Keeps the point at (x, y), given in parts of the view, where it is.
  const zoom = (factor, x = 0.5, y = 0.5) => {
    const closest = 200 / whole[2];
    const scale = Math.min(Math.max(view[2] / whole[2] / factor, Math.min(closest, 1)), 1.2);
    const [width, height] = [whole[2] * scale, whole[3] * scale];
    view = [view[0] + (view[2] - width) * x, view[1] + (view[3] - height) * y, width, height];
    show();
  };
  const move = (right, down) => {
    view[0] += right * view[2];
    view[1] += down * view[3];
    show();
  };
  const centre = node => {
    const box = node.querySelector("rect");
    const width = Math.min(whole[2], 900);
    const height = (width * whole[3]) / whole[2];
    view = [Number(box.getAttribute("x")) + 46 - width / 2, Number(box.getAttribute("y")) + 10 - height / 2, width, height];
    show();
  };

  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const factor = Number(button.dataset.zoom);
      if (factor) zoom(factor);
      else show((view = [...whole]));
    });
  }
  map.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const box = map.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }, { passive: false });
  map.addEventListener("pointerdown", down => {
    if (down.pointerType === "touch") return; // a finger scrolls the page
    map.setPointerCapture(down.pointerId);
    let last = down;
    const drag = event => {
      const box = map.getBoundingClientRect();
      move((last.clientX - event.clientX) / box.width, (last.clientY - event.clientY) / box.height);
      last = event;
    };
    map.addEventListener("pointermove", drag);
    map.addEventListener("pointerup", () => map.removeEventListener("pointermove", drag), { once: true });
  });
  map.addEventListener("keydown", event => {
    const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (steps[event.key]) move(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1.4);
    else if (event.key === "-") zoom(0.7);
    else if (event.key === "0") show((view = [...whole]));
    else return;
    event.preventDefault();
  });

  const find = document.getElementById("find");
  const nodes = [...map.querySelectorAll(".node")];
  let turn = 0;
  const search = () => {
    const words = find.value.trim().toLowerCase();
    const hits = nodes.filter(node => {
      const hit = words && node.querySelector("title").textContent.toLowerCase().includes(words);
      node.classList.toggle("found", Boolean(hit));
      return hit;
    });
    map.classList.toggle("searching", hits.length > 0);
    document.getElementById("hits").textContent = words ? `${hits.length} found` : "";
    return hits;
  };
  find.addEventListener("input", () => {
    turn = 0;
    const hits = search();
    if (hits.length) centre(hits[0]);
  });
  find.addEventListener("keydown", event => {
    if (event.key !== "Enter") return;
    const hits = search();
    if (hits.length) centre(hits[++turn % hits.length]);
  });
})();
