// Code with a button that copies it.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { copyText } from "../state/host";
import { CheckIcon, CopyIcon } from "./icons";

const FEEDBACK_MS = 2_000;

export function Code({ text, language }: { text: string; language?: string }): JSX.Element {
  const [outcome, setOutcome] = useState<"" | "Copied" | "Select and copy manually">("");
  const copy = async (): Promise<void> => {
    setOutcome((await copyText(text)) ? "Copied" : "Select and copy manually");
    setTimeout(() => setOutcome(""), FEEDBACK_MS);
  };
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={language ? `Code, ${language}` : "Code"}>
        <code>{text}</code>
      </pre>
      <button type="button" class="copy" onClick={() => void copy()}>
        {outcome === "Copied" ? <CheckIcon /> : <CopyIcon />}
        <span>{outcome || "Copy"}</span>
      </button>
      <span class="visually-hidden" role="status">
        {outcome}
      </span>
    </div>
  );
}
