// The columns of the table of runs.
import type { JSX } from "preact";
import { Severity } from "../../findings/severity";
import { formatShare } from "../../format";
import { analyze, analyzing, waiting } from "../../state/analyses";
import type { Capture, Mark, Severity as SeverityName } from "../../state/answers";
import { pin } from "../../state/marks";
import { captureLink, compareLink } from "../../state/store";
import { frameworkName, sessionName } from "../../text";
import { PinIcon } from "../../widgets/icons";
import { Name } from "../../widgets/name";
import { PageLink } from "../../widgets/page-link";
import { Prose } from "../../widgets/prose";
import type { Column } from "../../widgets/sortable-table";
import { TrustBadge } from "../report/trust";
import { nameOf, repeatedRuns } from "../../state/capture-name";

const ORDER: Record<SeverityName, number> = { high: 1, medium: 2, low: 3 };

/** A time without its seconds, which only sorting needs. */
const toMinutes = (time: string): string => time.replace(/(:\d\d):\d\d$/, "$1");

/** `12.3 % slower`; empty if the recordings do not tell. */
export function describeMark({ verdict, change_share: share }: Mark): string {
  return verdict === "inconclusive" ? "" : `${formatShare(Math.abs(share))} ${verdict}`;
}

export function columnsOf(
  captures: readonly Capture[],
  baseline: Capture | undefined,
  marks: Readonly<Record<string, Mark>>,
): Column<Capture>[] {
  const repeated = repeatedRuns(captures);
  const columns: Column<Capture>[] = [
    {
      key: "run",
      label: "Run",
      unit: null,
      value: (capture) => nameOf(capture, repeated),
      render: (capture) => <RunName capture={capture} isRepeated={repeated.has(capture.run)} isPinned={capture === baseline} />,
    },
    { key: "step", label: "Step", unit: "ns", value: ({ step_time_ns: step }) => step },
    {
      key: "change",
      label: baseline ? "vs. baseline" : "vs. before",
      unit: "share",
      value: ({ id }) => {
        const mark = marks[id];
        return mark && mark.verdict !== "inconclusive" ? mark.change_share : null;
      },
      render: ({ id }) => <Change id={id} mark={marks[id]} />,
    },
    {
      key: "first",
      label: "First change",
      unit: null,
      value: ({ first_change: title, headline }) => title ?? headline,
      render: (capture) => <FirstChange capture={capture} />,
    },
    { key: "saves", label: "Saves", unit: "share", value: ({ saves_share: share }) => share },
    {
      key: "severity",
      label: "Severity",
      unit: null,
      value: ({ severity }) => severity,
      order: ({ severity }) => severity && ORDER[severity],
      render: ({ severity }) => (severity ? <Severity severity={severity} /> : "–"),
    },
    {
      key: "framework",
      label: "Framework",
      unit: null,
      value: ({ framework }) => (framework === "unknown" ? null : frameworkName(framework)),
    },
    { key: "device", label: "Device", unit: null, value: ({ device }) => device },
    {
      key: "recorded",
      label: "Recorded",
      unit: null,
      value: ({ recorded }) => sessionName(recorded) || null,
      render: ({ recorded }) => <When time={toMinutes(sessionName(recorded))} />,
    },
  ];
  // Without a baseline, and with each run recorded once, nothing is compared.
  const isCompared = baseline !== undefined || captures.some(({ recordings }) => (recordings ?? 1) > 1);
  return columns.filter(({ key }) => key !== "change" || isCompared);
}

/** One line for a short name, two lines for a long one, so that the other columns don't squeeze it. */
const roomFor = ({ length }: string): { minWidth: string } => ({
  // Breaks leave lines a tenth short.
  minWidth: `min(${Math.max(Math.min(0.95 * length, 28), 0.55 * length)}ch, 40vw)`,
});

function RunName({ capture, isRepeated, isPinned }: { capture: Capture; isRepeated: boolean; isPinned: boolean }): JSX.Element {
  const { id, run, session, is_synthetic: isSynthetic, status, trust } = capture;
  const name = run || ".";
  return (
    <span class="run-name">
      <span style={roomFor(name)}>
        <span class="clamped" title={name}>
          <PageLink to={captureLink(id)}>
            <Name of={name} />
          </PageLink>
        </span>
        {isRepeated && <span class="muted session">{sessionName(session)}</span>}
      </span>
      {trust && trust !== "solid" && <TrustBadge level={trust} />}
      {isSynthetic && <span class="badge synthetic">synthetic</span>}
      {status === "done" && (
        <button
          type="button"
          class="icon-button pin"
          aria-pressed={isPinned}
          aria-label={`Pin ${name} as the baseline`}
          title={isPinned ? "The baseline: click to unpin" : "Pin as the baseline that all are compared with"}
          onClick={() => pin(isPinned ? null : id)}
        >
          <PinIcon />
        </button>
      )}
    </span>
  );
}

/** A day and a time, which need not stand on one line. */
function When({ time }: { time: string }): JSX.Element {
  const [day = "", ...rest] = time.split(" ");
  return (
    <>
      <span class="when">{day || "–"}</span> <span class="when muted">{rest.join(" ")}</span>
    </>
  );
}

function Change({ id, mark }: { id: string; mark: Mark | undefined }): JSX.Element {
  const text = mark && describeMark(mark);
  // Its room is kept while marks are on their way.
  if (!mark) return <span class="mark-room">–</span>;
  return (
    <PageLink
      class={text ? `badge mark verdict-${mark.verdict}` : "quiet-link muted"}
      title="Compare the two"
      to={compareLink(mark.base, [id])}
    >
      {text || "no clear change"}
    </PageLink>
  );
}

function FirstChange({ capture }: { capture: Capture }): JSX.Element {
  const { id, status, first_change: title, headline, finding, failure, set_aside: setAside } = capture;
  if (status === "failed") return <span class="muted clamped">Failed: {failure}</span>;
  const aside = setAside ? `${setAside} set aside` : "";
  if (title) {
    return (
      <span class="clamped first-change">
        <PageLink class="quiet-link" title={title} to={{ ...captureLink(id), finding: finding ?? "" }}>
          <Prose text={title} />
        </PageLink>
        {aside && <span class="muted">; {aside}</span>}
      </span>
    );
  }
  if (status === "done") return <span class="muted clamped">{headline}</span>;
  if (status === "running" || analyzing.value.includes(id)) return <span class="muted">Analyzing…</span>;
  if (status === "queued" || waiting.value.includes(id)) return <span class="muted">Waiting</span>;
  return (
    <button type="button" class="link-button" onClick={() => analyze([id])}>
      Analyze
    </button>
  );
}
