// Functions that run in the page. Each takes one argument and answers an object; `problem` says why it does not.
// The page may have changed everything they use: what they answer is the guest's word.
({
  // A text without its end. What is cut or the page's own need not be valid, and an answer has to be.
  cut(text, most) {
    const start = String(text).slice(0, most);
    return start.toWellFormed ? start.toWellFormed() : start;
  },

  // The element that a selector names.
  find(selector) {
    try {
      const element = document.querySelector(selector);
      return element ? { element } : { problem: "names no element of the page" };
    } catch {
      return { problem: "is not a CSS selector" };
    }
  },

  // The middle of an element, once it is in sight.
  locate({ selector }) {
    const { element, problem } = this.find(selector);
    if (problem) return { problem };
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) return { problem: "names an element that is not visible" };
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const top = document.elementFromPoint(x, y);
    if (top && top !== element && !element.contains(top) && !top.contains(element)) {
      return { problem: this.cut(`names an element that is behind another one: ${this.selectorOf(top)}`, 1000) };
    }
    return { x, y };
  },

  // Makes an element ready for text, which is to replace what is there. Of a list it selects the option.
  focus({ selector, text }) {
    const { element, problem } = this.find(selector);
    if (problem) return { problem };
    if (element.disabled || element.readOnly) return { problem: "names a field that cannot be changed" };
    if (element instanceof HTMLSelectElement) return this.selectOption(element, text);
    const typed = element instanceof HTMLTextAreaElement ||
      (element instanceof HTMLInputElement && !/^(button|checkbox|file|image|radio|reset|submit)$/.test(element.type));
    if (!typed && !element.isContentEditable) return { problem: "names nothing that takes text" };
    element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    element.focus();
    if (typed) element.select();
    else getSelection().selectAllChildren(element);
    return {};
  },

  selectOption(list, text) {
    const option = [...list.options].find(({ value, label }) => value === text || label.trim() === text);
    if (!option) {
      const known = [...list.options].slice(0, 20).map(({ label }) => label.trim()).join(", ");
      return { problem: this.cut(`has no such option; it has: ${known}`, 1000) };
    }
    option.selected = true;
    for (const type of ["input", "change"]) list.dispatchEvent(new Event(type, { bubbles: true }));
    return { selected: true };
  },

  // What a reader of the page sees, and what can be used on it.
  report({ selector, maxText, maxElements }) {
    let root = document.body ?? document.documentElement;
    if (selector !== null) {
      const found = this.find(selector);
      if (found.problem) return found;
      root = found.element;
    }
    const text = root?.innerText ?? root?.textContent ?? "";
    const usable = "a[href], button, input, select, textarea, summary, [contenteditable=''], " +
      "[contenteditable=true], [role=button], [role=link], [onclick]";
    const elements = [...(root?.querySelectorAll(usable) ?? [])].filter((element) => this.isVisible(element));
    return {
      url: this.cut(location.href, maxText),
      title: this.cut(document.title, maxText),
      text: this.cut(text, maxText),
      textLeftOut: Math.max(text.length - maxText, 0),
      elements: elements.slice(0, maxElements).map((element) => this.describe(element, maxText)),
      elementsLeftOut: Math.max(elements.length - maxElements, 0),
    };
  },

  isVisible(element) {
    const { width, height } = element.getBoundingClientRect();
    return width > 0 && height > 0 && getComputedStyle(element).visibility === "visible";
  },

  describe(element, maxText) {
    const label = element.innerText || element.labels?.[0]?.innerText || element.ariaLabel ||
      element.placeholder || element.title || element.name || "";
    const { type, value, checked } = element;
    const box = type === "checkbox" || type === "radio";
    const typed = typeof value === "string" && type !== "password" && element.localName !== "button";
    const href = element.getAttribute("href");
    return {
      selector: this.cut(this.selectorOf(element), maxText),
      kind: this.cut(type && typeof type === "string" ? `${element.localName} ${type}` : element.localName, 100),
      label: this.cut(String(label).trim().replace(/\s+/g, " "), 100),
      value: box ? String(checked) : typed ? this.cut(value, 100) : null,
      href: href === null ? null : this.cut(href, 500),
    };
  },

  // A selector that names this element and no other.
  selectorOf(element) {
    const only = (selector) => document.querySelectorAll(selector).length === 1;
    const parts = [];
    for (let at = element; at; at = at.parentElement) {
      const id = at.id && `#${CSS.escape(at.id)}`;
      if (id && only(id)) return [id, ...parts].join(" > ");
      const same = [...(at.parentElement?.children ?? [])].filter(({ localName }) => localName === at.localName);
      const place = same.length > 1 ? `:nth-of-type(${same.indexOf(at) + 1})` : "";
      parts.unshift(CSS.escape(at.localName) + place);
    }
    return parts.join(" > ");
  },
})
