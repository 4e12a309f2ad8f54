// A finding: a row that opens in place.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { BASE } from "../state/api";
import { readSearch } from "../state/host";
import { link } from "../state/link";
import { Below } from "../state/linked";
import { profileLink, profileTarget, profileTool } from "../state/profile-tab";
import type { FindingInfo, Report } from "../report";
import { chosenFinding, selectedCapture, toggleFinding } from "../state/store";
import { BASES, describeScope } from "../text";
import { CopyLink } from "./copy-link";
import { EvidenceList } from "./evidence";
import { FindingTimeline, isOnTimeline } from "./finding-timeline";
import { LinkIcon } from "../widgets/icons";
import { useIsWide } from "../widgets/is-wide";
import { PreviewBadge } from "./preview-badge";
import { Patch, hasPatch } from "./patch";
import { Places } from "./places";
import { Proof } from "./proof";
import { Prose } from "../widgets/prose";
import { RemarkForm, RemarkLine, canWriteRemark, isSetAside, remarkHint } from "./remark";
import { Remedies } from "./remedies";
import { RuleLink } from "./rule-link";
import { Saving, SavingBar, describeMemory } from "./saving";
import { Severity } from "./severity";
import { Tabs } from "../widgets/tabs";
import { Tick, canTick } from "./what-if";

interface Props {
  id: string;
  finding: FindingInfo;
  report: Report;
  fullShare: number;
  /** Whether other changes can be ticked, too. */
  canCombine: boolean;
  isRefined?: boolean;
  /** The id of the capture in routes, which is not that of the report. */
  captureId: string;
}

export function Finding(props: Props): JSX.Element {
  const { id, finding, report, fullShare, canCombine, isRefined = false } = props;
  const isOpen = chosenFinding.value === id;
  const row = useRef<HTMLDivElement>(null);
  const topPx = (): number => row.current?.getBoundingClientRect().top ?? 0;
  useEffect(() => {
    // Scroll to a finding that was opened by a link.
    if (isOpen && link.peek().finding) row.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const toggle = (): void => {
    const beforePx = topPx();
    toggleFinding(id);
    // What closes above moves this row away from the pointer: move the page along.
    requestAnimationFrame(() => scrollBy(0, topPx() - beforePx));
  };
  // Of a group, the one that is open tells; what is refined says much the same.
  const isAlone = !isRefined && finding.heading === null;
  const Heading = isRefined ? "h4" : "h3";
  const states = [isRefined && "finding-refined", isOpen && "is-open", isSetAside(finding) && "is-set-aside"];
  return (
    <div class={["finding", ...states].filter(Boolean).join(" ")} ref={row}>
      <div class="finding-head">
        {canCombine && canTick(finding) && <Tick id={id} finding={finding} />}
        <Heading class="finding-title">
          <button type="button" class="finding-row" aria-expanded={isOpen} aria-controls={`finding-${id}`} onClick={toggle}>
            <Prose text={describeChange(finding, report)} />
          </button>
          {finding.is_preview && <PreviewBadge />}
        </Heading>
        {(isOpen || isAlone) && (
          <p class={isOpen ? "summary" : "summary clamped"}>
            <Prose text={finding.summary} />
          </p>
        )}
        {finding.proof && <Proof proof={finding.proof} />}
        {finding.remark && <RemarkLine remark={finding.remark} />}
        {finding.saving && <SavingBar saving={finding.saving} fullShare={fullShare} />}
        <div class="finding-size">
          <Saving finding={finding} />
          {/* A group has one: what is refined is about the same time. */}
          {!isRefined && <Severity severity={finding.severity} />}
        </div>
      </div>
      <div id={`finding-${id}`} class="finding-body" hidden={!isOpen}>
        {isOpen && (
          <Below name={id}>
            <FindingBody {...props} />
          </Below>
        )}
      </div>
    </div>
  );
}

/** The title of a finding, without what is said beside it, or of the change to begin with in the headline. */
export function describeChange(finding: FindingInfo, { findings, first, headline }: Report): string {
  const title = finding.heading ?? finding.title;
  const end = title.indexOf(": ");
  const about = title.slice(end + 2);
  const isLeading = first !== null && findings[first.index] === finding;
  const isSaid = about === describeMemory(finding) || (isLeading && headline.toLowerCase().includes(about.toLowerCase()));
  return end > 0 && isSaid ? title.slice(0, end) : title;
}

function FindingBody({ id, finding, report, captureId }: Props): JSX.Element {
  const isWide = useIsWide();
  const { remedies, evidence } = finding;
  const places = finding.places?.filter(({ source }) => source) ?? [];
  const isTimed = isOnTimeline(report, finding);
  const tabs = [
    remedies.length > 0 && { name: "Change", content: <Remedies remedies={remedies} framework={report.framework} /> },
    // In a wide window, evidence that is not on the timeline has its place.
    evidence.length > 0 && (isTimed || !isWide) && { name: "Evidence", content: <EvidenceList items={evidence} /> },
    hasPatch(finding) && { name: "Patch", content: <Patch finding={finding} captureId={captureId} /> },
    places.length > 0 && { name: "Your code", content: <Places places={places} /> },
    canWriteRemark() && { name: "Note", content: <RemarkForm id={id} finding={finding} captureId={captureId} /> },
    remarkHint() && { name: "Note", content: <Prose text={`Notes cannot be written at this address. ${remarkHint()}`} /> },
    { name: "About", content: <About id={id} finding={finding} captureId={captureId} /> },
  ];
  return (
    <div class="finding-content">
      <Tabs label="Details" tabs={tabs.filter((tab) => typeof tab === "object")} />
      {isTimed && !isWide && <FindingTimeline finding={finding} report={report} captureId={captureId} />}
    </div>
  );
}

/** How to judge a finding, where it comes from, and links. */
function About({ id, finding, captureId }: Pick<Props, "id" | "finding" | "captureId">): JSX.Element {
  const target = profileTarget(selectedCapture.value);
  const [tool, toolLabel] = profileTool(finding.category);
  const scope = describeScope(finding.scope);
  const basis = finding.saving?.basis;
  const advice = [["How to verify", finding.how_to_verify], ["When to ignore", finding.when_to_ignore]] as const;
  return (
    <>
      <dl class="advice">
        {advice.map(([title, text]) => (
          <div key={title} hidden={!text}>
            <dt>{title}</dt>
            <dd>
              <Prose text={text} />
            </dd>
          </div>
        ))}
      </dl>
      <footer class="finding-foot">
        <span class="foot-facts">
          <code>{finding.rule_id}</code>
          {scope && <span>{scope}</span>}
          {basis && <span title={BASES[basis]}>{basis} saving</span>}
        </span>
        <span class="button-row">
          {target && (
            <a class="button" target="_parent" href={profileLink(BASE, readSearch(), target, tool)}>
              Profile tab: {toolLabel} <LinkIcon />
            </a>
          )}
          <CopyLink captureId={captureId} id={id} />
          <RuleLink ruleId={finding.rule_id} />
        </span>
      </footer>
    </>
  );
}
