// Code with a button that copies it.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { copyText } from "../state/host";
import { Diff, Highlighted } from "./highlighted";
import { CheckIcon, CopyIcon } from "./icons";

const FEEDBACK_MS = 2_000;

interface CodeProps {
  text: string;
  language?: string;
  /** Whether to mark the arguments that the code sets. */
  marksArguments?: boolean;
}

export function Code({ text, language, marksArguments = false }: CodeProps): JSX.Element {
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={language ? `Code, ${language}` : "Code"}>
        <code>
          {language === "python" ? <Highlighted text={text} marksArguments={marksArguments} /> : language === "diff" ? <Diff text={text} /> : text}
        </code>
      </pre>
      <CopyButton text={() => text} />
    </div>
  );
}

interface CopyProps {
  label?: ComponentChildren;
  text(): string;
}

/** A button that copies text, and says whether that worked. */
export function CopyButton({ label = "Copy", text }: CopyProps): JSX.Element {
  const [outcome, setOutcome] = useState<"" | "Copied" | "Select and copy manually">("");
  const copy = async (): Promise<void> => {
    setOutcome((await copyText(text())) ? "Copied" : "Select and copy manually");
    setTimeout(() => setOutcome(""), FEEDBACK_MS);
  };
  return (
    <>
      <button type="button" class="copy" onClick={() => void copy()}>
        {outcome === "Copied" ? <CheckIcon /> : <CopyIcon />}
        <span>{outcome || label}</span>
      </button>
      <span class="visually-hidden" role="status">
        {outcome}
      </span>
    </>
  );
}
