// Creates elements from text, and updates them in place so that selection, scroll position and focus survive the update every second.

/** An element with text; nothing from a run is ever parsed as HTML. */
export function element(tag, className = "", text = null, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null && text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** Updates the children of `root` to equal `fresh`, changing only what differs. Listeners of fresh nodes are not copied. */
export function renew(root, ...fresh) {
  fresh.forEach((wanted, index) => {
    const own = root.childNodes[index];
    if (!own) root.append(wanted);
    else if (own.nodeName !== wanted.nodeName) own.replaceWith(wanted);
    else if (own.nodeType === Node.TEXT_NODE) { if (own.data !== wanted.data) own.data = wanted.data; }
    else {
      renewAttributes(own, wanted);
      renew(own, ...wanted.childNodes);
    }
  });
  while (root.childNodes.length > fresh.length) root.lastChild.remove();
}

function renewAttributes(own, wanted) {
  for (const { name } of [...own.attributes]) if (!wanted.hasAttribute(name)) own.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (own.getAttribute(name) !== value) own.setAttribute(name, value);
}

/** Sets the text of a slot, which is hidden while it is empty. */
export function say(slot, words) {
  if (slot.textContent !== words) slot.textContent = words;
  slot.hidden = !words;
}
