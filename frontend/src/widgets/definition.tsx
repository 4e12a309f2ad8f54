// A small button that shows the definition of a number.
import type { JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { InfoIcon } from "./icons";

export function Definition({ of, text }: { of: string; text: string }): JSX.Element {
  const [isOpen, setOpen] = useState(false);
  const root = useRef<HTMLSpanElement>(null);
  const id = useId();
  useEffect(() => {
    if (!isOpen) return undefined;
    const onPointer = ({ target }: PointerEvent): void => {
      if (target instanceof Node && !root.current?.contains(target)) setOpen(false);
    };
    const onKey = ({ key }: KeyboardEvent): void => {
      if (key === "Escape") setOpen(false);
    };
    document.addEventListener("pointerdown", onPointer);
    document.addEventListener("keydown", onKey);
    return () => {
      document.removeEventListener("pointerdown", onPointer);
      document.removeEventListener("keydown", onKey);
    };
  }, [isOpen]);
  return (
    <span ref={root} class="definition">
      <button
        type="button"
        class="icon-button"
        aria-label={`What is ${of}?`}
        aria-expanded={isOpen}
        aria-controls={id}
        onClick={() => setOpen(!isOpen)}
      >
        <InfoIcon />
      </button>
      <span id={id} class="definition-text" role="note" hidden={!isOpen}>
        {text}
      </span>
    </span>
  );
}
