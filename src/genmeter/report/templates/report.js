"use strict";
(() => {
  const grid = document.getElementById("shots");
  const key = document.getElementById("sort-key");
  const turn = document.getElementById("sort-turn");
  let ascending = true;
  const sort = () => {
    const name = key.value === "" ? "line" : "m" + key.value;
    const value = (shot) => (name in shot.dataset ? Number(shot.dataset[name]) : null);
    const shots = Array.from(grid.children);
    shots.sort((a, b) => {
      const x = value(a), y = value(b);
      // Samples without a score stay at the end whichever way round.
      if (x === null || y === null) return (x === null) - (y === null) || a.dataset.line - b.dataset.line;
      return (ascending ? x - y : y - x) || a.dataset.line - b.dataset.line;
    });
    grid.replaceChildren(...shots);
  };
  key.addEventListener("change", () => {
    ascending = key.selectedOptions[0].dataset.first !== "descending";
    sort();
  });
  turn.addEventListener("click", () => {
    ascending = !ascending;
    sort();
  });
})();
