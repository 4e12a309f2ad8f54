// No capture: what was looked at, what was turned away, and how to record one.
import type { JSX } from "preact";
import { type CaptureList, fetchDoctor } from "../api";
import { formatPlural } from "../format";
import { asSentence } from "../text";
import { Fetched } from "./fetched";
import { NoteList } from "./notes";
import { Recording } from "./recording";

export function Empty({ list }: { list: CaptureList }): JSX.Element {
  const { scan, rejected } = list;
  return (
    <>
      <header class="headline">
        <h1>{scan.is_scanning ? "Looking for profiles…" : "No profile found yet"}</h1>
        <p class="subline" role="status">
          <span>
            {formatPlural(scan.scanned_files, "file")} looked at in <code>{scan.root}</code>
          </span>
          {scan.gaps.map((gap) => (
            <span key={gap}>not all: {gap}</span>
          ))}
        </p>
      </header>
      {!scan.is_scanning && (
        <Fetched of={scan.root} fetch={fetchDoctor}>
          {({ notes }) => notes.length > 0 && <NoteList notes={notes} />}
        </Fetched>
      )}
      {rejected.length > 0 && <Rejected rejected={rejected} />}
      <section class="card" aria-labelledby="recording">
        <div class="card-head">
          <h2 id="recording">Record one</h2>
        </div>
        <p>
          Run a few steps under the profiler, with the log folder given to TensorBoard, then press
          TensorBoard’s reload button.
        </p>
        <Recording />
      </section>
    </>
  );
}

function Rejected({ rejected }: Pick<CaptureList, "rejected">): JSX.Element {
  return (
    <section class="card" aria-labelledby="rejected">
      <div class="card-head">
        <h2 id="rejected">What could not be read</h2>
      </div>
      <RejectedList rejected={rejected} />
    </section>
  );
}

export function RejectedList({ rejected }: Pick<CaptureList, "rejected">): JSX.Element {
  return (
    <ul class="rejected">
      {rejected.map(({ path, reason }) => (
        <li key={path}>
          <code>{path}</code>
          <span>{asSentence(reason)}</span>
        </li>
      ))}
    </ul>
  );
}
