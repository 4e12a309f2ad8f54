// The page without captures: what was scanned, what could not be read, and how to record a profile.
import type { JSX } from "preact";
import type { CaptureList } from "../state/answers";
import { fetchDoctor } from "../state/api";
import { formatPlural } from "../format";
import { Fetched } from "../widgets/fetched";
import { NoteList } from "../widgets/notes";
import { Recording } from "./recording";
import { UnreadFiles } from "./unread-files";

export function EmptyPage({ list }: { list: CaptureList }): JSX.Element {
  const { scan } = list;
  return (
    <>
      <header class="headline">
        <h1>{scan.is_scanning ? "Scanning for profiles…" : "No profiles found"}</h1>
        <p class="subline" role="status">
          <span>
            {formatPlural(scan.scanned_files, "file")} scanned in <code>{scan.root}</code>
          </span>
          {scan.gaps.map((gap) => (
            <span key={gap}>incomplete: {gap}</span>
          ))}
        </p>
      </header>
      {!scan.is_scanning && (
        <Fetched of={scan.root} fetch={fetchDoctor}>
          {({ notes }) => notes.length > 0 && <NoteList notes={notes} />}
        </Fetched>
      )}
      {list.rejected.length > 0 && (
        <section aria-labelledby="not-read">
          <div class="section-head">
            <h2 id="not-read">Files not read</h2>
          </div>
          <UnreadFiles rejected={list.rejected} rejected_count={list.rejected_count} />
        </section>
      )}
      <section class="card" aria-labelledby="recording">
        <div class="card-head">
          <h2 id="recording">Record a profile</h2>
        </div>
        <p>
          Profile a few steps, write the trace to TensorBoard’s log folder, then press TensorBoard’s
          reload button.
        </p>
        <Recording />
      </section>
    </>
  );
}
