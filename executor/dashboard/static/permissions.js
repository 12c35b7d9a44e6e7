// What the token of this page may not do. A button that needs a refused route is disabled, with the reason.

let refused = {};

/** Set the refused routes, each with its reason, as `GET /whoami` names them. */
export function setRefused(routes) {
  refused = routes;
  for (const node of document.querySelectorAll("[data-needs]")) apply(node);
}

/** Disable a button while the token may not use this route, like `POST /executions`. */
export function guard(node, route) {
  node.dataset.needs = route;
  apply(node);
}

// With aria-disabled a button keeps the focus and its description; so its clicks are stopped here.
document.addEventListener("click", (event) => {
  if (!event.target.closest?.('[data-needs][aria-disabled="true"]')) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, { capture: true });

function apply(node) {
  const reason = refused[node.dataset.needs];
  if (reason) {
    node.setAttribute("aria-disabled", "true");
    node.setAttribute("aria-describedby", descriptionOf(reason));
    node.title = sentence(reason);
  } else if (node.ariaDisabled === "true") {
    for (const name of ["aria-disabled", "aria-describedby", "title"]) node.removeAttribute(name);
  }
}

/** Return the id of an element that holds the reason; one for all buttons with this reason. */
function descriptionOf(reason) {
  const known = [...document.querySelectorAll("#reasons > span")].find((each) => each.textContent === sentence(reason));
  if (known) return known.id;
  let all = document.getElementById("reasons");
  if (!all) {
    all = document.createElement("div");
    all.id = "reasons";
    all.hidden = true;
    document.body.append(all);
  }
  const node = document.createElement("span");
  node.id = `reason-${all.childElementCount + 1}`;
  node.textContent = sentence(reason);
  all.append(node);
  return node.id;
}

function sentence(reason) {
  return `Not allowed: ${reason}.`;
}
