// The page's own behaviour: what Gradio's components cannot do. Everything it sends goes to this server.
(() => {
  "use strict";
  const fullread = (window.fullread = {});
  const one = (selector, root = document) => root.querySelector(selector);

  // Clicks on [data-act] and changes of [data-change] inside one of our parts, as data for its `act` event.
  fullread.wire = (element, trigger) => {
    element.addEventListener("click", (event) => {
      const target = event.target.closest("[data-act]");
      if (!target || !element.contains(target)) return;
      if (["source", "read"].includes(target.dataset.act)) showReader(target);
      if (["chat", "new", "suggest", "again"].includes(target.dataset.act)) look("chat");
      trigger({ ...target.dataset });
      if (["suggest", "again", "new", "chat"].includes(target.dataset.act)) focusQuestion();
    });
    element.addEventListener("change", (event) => {
      const target = event.target.closest("[data-change]");
      if (!target) return;
      const value = target.type === "checkbox" ? target.checked : target.value;
      trigger({ ...target.dataset, act: target.dataset.change, value });
      if (target.type === "password") target.value = "";
    });
  };

  // Where a narrow screen looks: documents, chat or reader. A wide one shows the reader beside the others.
  function look(view) {
    document.body.dataset.view = view;
    for (const button of document.querySelectorAll("[data-local=view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
  }

  let isAtEnd = true; // of the conversation; see follow
  let cameFrom = null;
  function showReader(target) {
    cameFrom = target;
    document.body.classList.add("reading");
    look("reader");
  }
  function closeReader() {
    document.body.classList.remove("reading");
    look("chat");
    if (cameFrom && cameFrom.isConnected) cameFrom.focus();
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-local]");
    const panel = one("details.engine");
    if (panel && panel.open && !panel.contains(event.target)) panel.open = false;
    if (event.target.closest("#send")) isAtEnd = true;
    if (!target) return;
    if (target.dataset.local === "close-reader") closeReader();
    if (target.dataset.local === "view") {
      document.body.classList.toggle("reading", target.dataset.view === "reader");
      look(target.dataset.view);
    }
  });

  // ---- Files ------------------------------------------------------------------------------------------------
  // Folders nobody asks about, large enough to drown the rest; named in the status line when they are left out.
  const LEFT_OUT = new Set([".git", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", ".idea"]);

  fullread.drop = (element) => {
    for (const picker of element.querySelectorAll("[data-picker]")) {
      one(`[data-pick=${picker.dataset.picker}]`, element).addEventListener("click", () => picker.click());
      picker.addEventListener("change", () => {
        const left = new Set();
        const files = [];
        for (const file of picker.files) {
          const path = file.webkitRelativePath || file.name;
          const outside = path.split("/").slice(1, -1).find((part) => LEFT_OUT.has(part));
          if (outside) left.add(outside);
          else files.push({ path, file });
        }
        send(files, left);
        picker.value = "";
      });
    }
  };

  function carriesFiles(event) {
    return event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  }
  let depth = 0;
  document.addEventListener("dragenter", (event) => {
    if (!carriesFiles(event)) return;
    depth += 1;
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!carriesFiles(event)) return;
    depth -= 1;
    if (depth <= 0) document.body.classList.remove("dropping");
  });
  document.addEventListener("dragover", (event) => {
    if (carriesFiles(event)) event.preventDefault();
  });
  document.addEventListener("drop", async (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    depth = 0;
    document.body.classList.remove("dropping");
    // All must be taken before the first await: the list is empty afterwards.
    const dropped = [...event.dataTransfer.items]
      .filter((item) => item.kind === "file")
      .map((item) => ({ entry: item.webkitGetAsEntry && item.webkitGetAsEntry(), file: item.getAsFile() }));
    const files = [];
    const left = new Set();
    for (const { entry, file } of dropped) {
      if (entry) await gather(entry, "", files, left);
      else if (file) files.push({ path: file.name, file });
    }
    send(files, left);
  });

  async function gather(entry, prefix, files, left) {
    const path = prefix + entry.name;
    if (entry.isFile) {
      files.push({ path, file: await new Promise((done, failed) => entry.file(done, failed)) });
      return;
    }
    if (prefix && LEFT_OUT.has(entry.name)) {
      left.add(entry.name);
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // at most 100 at a time
      if (!some.length) return;
      for (const child of some) await gather(child, `${path}/`, files, left);
    }
  }

  // One upload per document: a file, or all files of one folder.
  async function send(files, left) {
    const documents = new Map();
    files.forEach(({ path, file }, number) => {
      const key = path.includes("/") ? path.split("/")[0] : `/${number}`;
      documents.set(key, [...(documents.get(key) || []), { path, file }]);
    });
    if (!documents.size) return say("There was no file in what you dropped.", true);
    look("documents");
    const refusals = [];
    for (const parts of documents.values()) {
      const name = parts[0].path.split("/")[0];
      const refusal = await post(parts, (share) => say(`Receiving ${name}… ${share} %`));
      if (refusal) refusals.push(refusal);
    }
    if (refusals.length) say(refusals.join(" "), true);
    else say(left.size ? `Left out: ${[...left].join(", ")}.` : "");
  }

  function post(parts, progress) {
    return new Promise((done) => {
      const form = new FormData();
      for (const { path, file } of parts) form.append("files", file, path);
      const request = new XMLHttpRequest();
      request.open("POST", "api/documents");
      request.responseType = "json";
      request.upload.onprogress = (event) => {
        if (event.lengthComputable) progress(Math.floor((100 * event.loaded) / event.total));
      };
      request.onerror = () => done("The file did not arrive. Is Fullread still running?");
      request.onload = () => {
        if (request.status === 401) location.reload();
        const error = request.response && request.response.error;
        done(request.status === 200 ? "" : (error && error.message) || "The file was not accepted.");
      };
      request.send(form);
    });
  }

  function say(words, isProblem = false) {
    const status = one(".drop-status");
    if (!status) return;
    status.textContent = words;
    status.classList.toggle("warning", isProblem);
  }

  // ---- Reading and writing ----------------------------------------------------------------------------------
  function focusQuestion() {
    const field = one("#question textarea");
    if (field && !matchMedia("(max-width: 759px)").matches) field.focus();
  }

  // Keep the newest words in sight, unless the person has scrolled up to read.
  function follow(scroller) {
    scroller.addEventListener("scroll", () => {
      isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    });
    new MutationObserver(() => {
      if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
    }).observe(scroller, { childList: true, subtree: true, characterData: true });
  }

  // A newly opened page begins at its passage, or at its top.
  function reveal(reader) {
    let shown = "";
    new MutationObserver(() => {
      const text = one(".reader-text", reader);
      const key = reader.textContent;
      if (!text || key === shown) return;
      shown = key;
      const mark = one("mark", text);
      if (mark) mark.scrollIntoView({ block: "center" });
      else text.scrollTop = 0;
    }).observe(reader, { childList: true, subtree: true, characterData: true, attributes: true });
  }

  function whenThere(selector, act) {
    const found = one(selector);
    if (found) return act(found);
    const observer = new MutationObserver(() => {
      const element = one(selector);
      if (!element) return;
      observer.disconnect();
      act(element);
    });
    observer.observe(document.documentElement, { childList: true, subtree: true });
  }
  // The server lets `#beat` change every two seconds. When it stops, the page is dead: it says so, and comes back
  // by itself once the server answers, unless a question is half written.
  const WORRYING = 6_000;
  const BROKEN = 15_000;
  function watchOver(beat) {
    let last = Date.now();
    new MutationObserver(() => {
      last = Date.now();
      tell("");
    }).observe(beat, { childList: true, subtree: true, characterData: true });
    setInterval(async () => {
      if (document.visibilityState === "hidden") last = Date.now(); // browsers slow hidden pages down
      const silent = Date.now() - last;
      if (silent < WORRYING) return;
      const isThere = await fetch("health", { cache: "no-store" }).then(() => true, () => false);
      const field = one("#question textarea");
      if (!isThere) tell("Fullread does not answer any more. Start it again: this page comes back by itself.");
      else if (silent > BROKEN && field && field.value) tell("The connection was cut. Copy your question, then reload this page.");
      else if (silent > BROKEN) location.reload();
    }, 2_000);
  }
  function tell(words) {
    let banner = one(".lost");
    if (!banner && !words) return;
    if (!banner) {
      banner = document.createElement("p");
      banner.className = "lost";
      banner.setAttribute("role", "alert");
      document.body.append(banner);
    }
    if (banner.textContent !== words) banner.textContent = words;
    banner.hidden = !words;
  }
  whenThere("#talk", follow);
  whenThere("#beat", watchOver);
  whenThere("#reader", reveal);
  whenThere("[data-local=view]", () => look("chat"));

  document.addEventListener(
    "keydown",
    (event) => {
      const isField = event.target.closest && event.target.closest("input, textarea");
      const command = event.ctrlKey || event.metaKey;
      if (event.key === "Enter" && event.shiftKey && event.target.closest && event.target.closest("#question")) {
        event.stopPropagation(); // a new line; Gradio's field would send
      } else if (event.key === "Enter" && event.target.closest && event.target.closest("#question")) {
        isAtEnd = true; // Gradio's field sends; whoever asks wants to see the answer
      } else if (event.key === "Enter" && event.target.matches && event.target.matches("input[data-change]")) {
        event.target.blur();
      } else if ((event.key === "/" && !isField) || (command && event.key.toLowerCase() === "k")) {
        event.preventDefault();
        const field = one("#question textarea");
        if (field) field.focus();
      } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        const button = one(".new-chat");
        if (button) button.click();
      } else if (event.key === "Escape") {
        const stop = one("button#stop, #stop button");
        const panel = one("details.engine");
        if (panel && panel.open) panel.open = false;
        else if (stop && stop.offsetParent) stop.click();
        else if (document.body.classList.contains("reading")) closeReader();
      }
    },
    true,
  );
})();
