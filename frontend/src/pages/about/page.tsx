// About the log folder and this tab: which files were read, problems with the setup, and what is checked.
import type { JSX } from "preact";
import type { Capture, CaptureList } from "../../state/answers";
import { fetchDoctor, fetchRules } from "../../state/api";
import { formatBytes, formatPlural } from "../../format";
import { captureLink, openRule } from "../../state/store";
import { frameworkName, sessionName } from "../../text";
import { type Column, SortableTable } from "../../widgets/sortable-table";
import { Fetched } from "../../widgets/fetched";
import { CheckIcon } from "../../widgets/icons";
import { Head } from "../../widgets/head";
import { Name } from "../../widgets/name";
import { NoteList } from "../../widgets/notes";
import { PageLink } from "../../widgets/page-link";
import { RulePage, Rules } from "./rules";
import { UnreadFiles } from "./unread-files";

const STATUS: Record<Capture["status"], string> = {
  new: "not yet",
  queued: "queued",
  running: "running",
  done: "yes",
  failed: "failed",
};

const CAPTURES: Column<Capture>[] = [
  {
    key: "run",
    label: "Run",
    unit: null,
    value: ({ run }) => run || ".",
    render: (capture) => (
      <PageLink to={captureLink(capture.id)}>
        <Name of={capture.run || "."} />
      </PageLink>
    ),
  },
  { key: "session", label: "Session", unit: null, value: ({ session }) => sessionName(session) },
  {
    key: "framework",
    label: "Framework",
    unit: null,
    value: ({ framework }) => (framework === "unknown" ? null : frameworkName(framework)),
  },
  { key: "format", label: "Format", unit: null, value: ({ format_label: label }) => label },
  { key: "files", label: "Files", unit: "count", value: ({ files }) => files },
  { key: "size", label: "Size", unit: "bytes", value: ({ size_bytes: size }) => size },
  {
    key: "profile",
    label: "In Profile tab",
    unit: null,
    value: (capture) => (capture.profile_run ? "yes" : "no"),
  },
  { key: "status", label: "Analyzed", unit: null, value: ({ status }) => STATUS[status] },
];

export function AboutPage({ list }: { list: CaptureList }): JSX.Element {
  const { captures, scan } = list;
  if (openRule.value !== null) return <RulePage id={openRule.value} />;
  const sizeBytes = captures.reduce((sum, capture) => sum + capture.size_bytes, 0);
  return (
    <>
      <Head
        title={`${formatPlural(captures.length, "capture")} in ${formatPlural(scan.scanned_files, "file")}`}
        facts={[
          <code>{scan.root}</code>,
          sizeBytes > 0 && `${formatBytes(sizeBytes)} of profiles`,
          scan.is_scanning && "still scanning",
          ...scan.gaps.map((gap) => `incomplete: ${gap}`),
        ]}
      />
      <section aria-labelledby="captures">
        <div class="section-head">
          <h2 id="captures">Captures</h2>
        </div>
        <SortableTable caption="Captures" columns={CAPTURES} rows={captures} filterLabel="Find a capture" />
        {captures.some(({ is_for_profile_tab: isRead }) => !isRead) && (
          <p class="muted table-note">The Profile tab reads only XPlane files; all others appear only in this tab.</p>
        )}
      </section>
      <Fetched
        of={`${scan.scanned_files}`}
        fetch={(signal) => Promise.all([fetchDoctor(signal), fetchRules(signal)])}
      >
        {([{ notes, ...unread }, rules]) => (
          <>
            <section aria-labelledby="setup">
              <div class="section-head">
                <h2 id="setup">Setup</h2>
              </div>
              {notes.length > 0 ? (
                <NoteList notes={notes} />
              ) : (
                <p class="card all-clear">
                  <CheckIcon /> No setup problems: nothing hides a profile from this tab or the Profile tab.
                </p>
              )}
            </section>
            <section aria-labelledby="not-read">
              <div class="section-head">
                <h2 id="not-read">Files not read</h2>
              </div>
              {unread.rejected.length > 0 ? (
                <UnreadFiles {...unread} />
              ) : (
                <p class="card all-clear">
                  <CheckIcon /> Every file that looks like a profile was read.
                </p>
              )}
            </section>
            <Rules rules={rules} />
          </>
        )}
      </Fetched>
    </>
  );
}
