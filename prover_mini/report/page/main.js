// The page from its data.

const REPORT = JSON.parse(document.getElementById("data").textContent);
const PACKED = JSON.parse(document.getElementById("packed").textContent);

document
  .getElementById("report")
  .append(
    ...[drawHead, drawCurves, drawKinds, drawBrowser, drawConfiguration]
      .map((draw) => draw(REPORT.runs))
      .filter(Boolean),
    el("footer", {}, "Made by ", code(null, "python -m prover_mini.report"), ". Nothing is loaded from elsewhere."),
  );
