// The page without captures: what was scanned, what could not be read, and how to record a profile.
import type { JSX } from "preact";
import type { CaptureList } from "../state/answers";
import { fetchDoctor } from "../state/api";
import { formatPlural } from "../format";
import { Code } from "../widgets/code";
import { Fetched } from "../widgets/fetched";
import { Head } from "../widgets/head";
import { NoteList } from "../widgets/notes";
import { Recording } from "./recording";
import { RecordNow } from "./runs/record-now";
import { UnreadFiles } from "./about/unread-files";

export function EmptyPage({ list }: { list: CaptureList }): JSX.Element {
  const { scan } = list;
  return (
    <>
      <Head
        title={scan.is_scanning ? "Scanning for profiles…" : "No profiles found"}
        facts={[
          <span role="status">
            {formatPlural(scan.scanned_files, "file")} scanned in <code>{scan.root}</code>
          </span>,
          ...scan.gaps.map((gap) => `incomplete: ${gap}`),
        ]}
      />
      <section class="card" aria-labelledby="recording">
        <div class="card-head">
          <h2 id="recording">Record a profile</h2>
        </div>
        <p>Start your program with this in front of it, then press TensorBoard’s reload button:</p>
        <Code text="perfadvisor run -- python train.py" language="shell" />
        <p class="muted">
          It records a few steps into <code>runs/perfadvisor</code>; <code>--logdir</code> names TensorBoard’s log folder. Or
          record in the program itself:
        </p>
        <Recording />
        <RecordNow programs={list.programs ?? 0} />
      </section>
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
    </>
  );
}
