// Elements: made from text, and renewed in place, so that what a person has selected, scrolled or focused outlives every second's news.

/** An element with text: nothing that a run says is ever read as HTML. */
export function element(tag, className = "", text = null, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null && text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

/** Makes the children of `root` like `fresh` by changing only what differs. Listeners of fresh nodes are not carried over. */
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

/** Text in a slot that is not there while there is nothing to say. */
export function say(slot, words) {
  if (slot.textContent !== words) slot.textContent = words;
  slot.hidden = !words;
}
