// Of every page: filtering tables, telling of kernels, copying commands. Without it the page has everything but that.
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
})();
