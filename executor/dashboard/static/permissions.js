// Disabled buttons give their reason: the token of this page may not use the route, or there is nothing to
// do.

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

/** Disable a button for a reason, a sentence; null enables it, if the token may use its route. */
export function block(node, reason) {
  if (reason) node.dataset.blocked = reason;
  else delete node.dataset.blocked;
  apply(node);
}

// With aria-disabled a button keeps the focus and its description; so its clicks are stopped here.
document.addEventListener("click", (event) => {
  if (!event.target.closest?.('button[aria-disabled="true"]')) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, { capture: true });

function apply(node) {
  const refusal = refused[node.dataset.needs];
  const reason = refusal ? `Not allowed: ${refusal}.` : node.dataset.blocked;
  if (reason) {
    node.setAttribute("aria-disabled", "true");
    node.setAttribute("aria-describedby", descriptionOf(reason));
    node.title = reason;
  } else if (node.ariaDisabled === "true") {
    for (const name of ["aria-disabled", "aria-describedby", "title"]) node.removeAttribute(name);
  }
}

/** Return the id of an element that holds the reason; one for all buttons with this reason. */
function descriptionOf(reason) {
  const known = [...document.querySelectorAll("#reasons > span")].find((each) => each.textContent === reason);
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
  node.textContent = reason;
  all.append(node);
  return node.id;
}
