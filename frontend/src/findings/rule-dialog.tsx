// The documentation page of a rule, in a dialog.
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { type RulePage, ApiError } from "../state/answers";
import { fetchRule } from "../state/api";
import { Markdown } from "../widgets/prose";

export function RulePageButton({ ruleId }: { ruleId: string }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [page, setPage] = useState<RulePage | null>(null);
  const [problem, setProblem] = useState("");
  const open = (): void => {
    dialog.current?.showModal();
    if (page) return;
    fetchRule(ruleId).then(setPage, (error: unknown) =>
      setProblem(error instanceof ApiError ? error.message : "This page cannot be shown"),
    );
  };
  return (
    <>
      <button type="button" onClick={open}>
        About this rule
      </button>
      <dialog ref={dialog} aria-label={page?.title ?? ruleId} onClick={closeOnBackdrop}>
        <div class="dialog-content">
          <div class="card-head">
            <h2>{page?.title ?? ruleId}</h2>
            <button type="button" onClick={() => dialog.current?.close()}>
              Close
            </button>
          </div>
          {page ? <Markdown text={withoutTitle(page.page)} /> : <p role="status">{problem || "Loading…"}</p>}
        </div>
      </dialog>
    </>
  );
}

/** Removes the title, which the dialog already shows. */
const withoutTitle = (page: string): string => page.replace(/^\s*# .*\n/, "");

function closeOnBackdrop(event: MouseEvent): void {
  if (event.target instanceof HTMLDialogElement) event.target.close();
}
