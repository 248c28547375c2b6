import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Problem } from "../../api";

const colours = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--accent)" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--feedforward)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", backgroundColor: "var(--raised)", color: "var(--ink)" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.55" },
  ".cm-gutters": { backgroundColor: "var(--raised)", color: "var(--quiet)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--ground)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused": { outline: "2px solid var(--accent)" },
  ".cm-tooltip": { backgroundColor: "var(--raised)", borderColor: "var(--line)" },
});

/** Create a YAML editor. Its style sheets have the page's CSP nonce. */
export function createEditor(parent: HTMLElement, text: string, onchange: (text: string) => void): EditorView {
  const nonce = document.querySelector<HTMLMetaElement>("meta[property=csp-nonce]")?.nonce ?? "";
  const state = EditorState.create({
    doc: text,
    extensions: [
      EditorView.cspNonce.of(nonce),
      EditorView.contentAttributes.of({ "aria-label": "Specification in YAML", tabindex: "0" }),
      EditorView.lineWrapping,
      EditorView.updateListener.of((update) => {
        if (update.docChanged && update.transactions.some((transaction) => transaction.isUserEvent("input") || transaction.isUserEvent("delete") || transaction.isUserEvent("undo") || transaction.isUserEvent("redo") || transaction.isUserEvent("move"))) {
          onchange(update.state.doc.toString());
        }
      }),
      lineNumbers(),
      lintGutter(),
      history(),
      drawSelection(),
      highlightActiveLine(),
      indentUnit.of("  "),
      keymap.of([...defaultKeymap, ...historyKeymap]),
      yaml(),
      syntaxHighlighting(colours),
      look,
    ],
  });
  return new EditorView({ state, parent });
}

/** Replace the text of an editor. */
export function replaceText(view: EditorView, text: string): void {
  view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
}

/** Underline problems in the text. */
export function showProblems(view: EditorView, problems: Problem[]): void {
  const diagnostics = problems.map((problem) => {
    const line = view.state.doc.line(Math.min(Math.max(1, problem.line), view.state.doc.lines));
    const from = Math.min(line.from + problem.column - 1, line.to);
    const message = [problem.path, problem.message, problem.remedy].filter(Boolean).join("; ");
    return { from, to: line.to, severity: "error" as const, message };
  });
  view.dispatch(setDiagnostics(view.state, diagnostics));
}

/** Move the cursor to a line. */
export function goToLine(view: EditorView, number: number): void {
  const line = view.state.doc.line(Math.min(Math.max(1, number), view.state.doc.lines));
  view.dispatch({ selection: { anchor: line.from }, scrollIntoView: true });
  view.focus();
}
