// Notes about the profile itself.
import type { JSX } from "preact";
import type { NoteInfo } from "../report";
import { InfoIcon, WarningIcon } from "./icons";
import { Prose } from "./prose";

const WORDS: Record<NoteInfo["severity"], string> = { info: "Note", warning: "Warning", error: "Problem" };
const ORDER: NoteInfo["severity"][] = ["error", "warning", "info"];

export function Notes({ notes }: { notes: NoteInfo[] }): JSX.Element | null {
  if (notes.length === 0) return null;
  return (
    <section aria-labelledby="notes">
      <div class="section-head">
        <h2 id="notes">About this profile</h2>
      </div>
      <NoteList notes={notes} />
    </section>
  );
}

/** Notes to read before the numbers. */
export function Problems({ notes }: { notes: NoteInfo[] }): JSX.Element | null {
  if (notes.length === 0) return null;
  return (
    <section aria-label="Problems with this profile">
      <NoteList notes={notes} />
    </section>
  );
}

export function NoteList({ notes }: { notes: NoteInfo[] }): JSX.Element {
  const sorted = [...notes].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
  return (
    <ul class="notes card">
      {sorted.map((note, index) => (
        <li key={index} class={`note note-${note.severity}`}>
          {note.severity === "info" ? <InfoIcon /> : <WarningIcon />}
          <div>
            <p>
              <span class="visually-hidden">{WORDS[note.severity]}: </span>
              <Prose text={note.message} />
            </p>
            {note.remedy && (
              <p class="muted">
                <Prose text={note.remedy} />
              </p>
            )}
          </div>
        </li>
      ))}
    </ul>
  );
}
