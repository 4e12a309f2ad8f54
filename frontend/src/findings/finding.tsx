// A finding: a row that opens in place.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { BASE, excerptUrl } from "../state/api";
import { isExported } from "../state/exported";
import { readSearch } from "../state/host";
import { Below } from "../state/linked";
import { profileLink, profileTarget, profileTool } from "../state/profile-tab";
import type { FindingInfo, Report } from "../report";
import { openFindings, selectedCapture, toggleFinding } from "../state/store";
import { formatBytes } from "../format";
import { BASES, describeBounds, describeScope } from "../text";
import { CopyLink } from "./copy-link";
import { EvidenceList } from "./evidence";
import { ExcerptLink } from "../timeline/excerpt-link";
import { ChevronIcon, LinkIcon } from "../widgets/icons";
import { PreviewBadge } from "./preview-badge";
import { Places } from "./places";
import { Proof } from "./proof";
import { Prose } from "../widgets/prose";
import { RemarkForm, RemarkLine, canWriteRemark, isSetAside, remarkHint } from "./remark";
import { Remedies } from "./remedies";
import { RuleLink } from "./rule-link";
import { Saving } from "./saving";
import { Severity } from "./severity";
import { Tick, canTick } from "./what-if";

interface Props {
  id: string;
  finding: FindingInfo;
  report: Report;
  fullShare: number;
  isRefined?: boolean;
  /** The id of the capture in routes, which is not that of the report. */
  captureId: string;
}

export function Finding(props: Props): JSX.Element {
  const { id, finding, fullShare, isRefined = false } = props;
  const isOpen = openFindings.value.has(id);
  const row = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // Scroll to a finding that was opened by a link.
    if (isOpen) row.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const Heading = isRefined ? "h4" : "h3";
  return (
    <div class={`finding${isRefined ? " finding-refined" : ""}${isOpen ? " is-open" : ""}${isSetAside(finding) ? " is-set-aside" : ""}`} ref={row}>
      {canTick(finding) && <Tick id={id} finding={finding} />}
      <Heading class="finding-heading">
        <button
          type="button"
          class="finding-row"
          aria-expanded={isOpen}
          aria-controls={`finding-${id}`}
          onClick={() => toggleFinding(id)}
        >
          <ChevronIcon />
          <span class="finding-title">
            <Prose text={finding.heading ?? finding.title} />
            {finding.is_preview && <> <PreviewBadge /></>}
            {finding.proof && <Proof proof={finding.proof} />}
            {finding.remark && <RemarkLine remark={finding.remark} />}
          </span>
          {finding.heading === null ? <Severity severity={finding.severity} /> : <span />}
          {finding.saving ? (
            <Saving finding={finding} saving={finding.saving} fullShare={fullShare} />
          ) : (
            <span class="saving saving-none">
              {finding.memory_saving
                ? `${formatBytes(finding.memory_saving.bytes)} less at the peak`
                : finding.bounds
                  ? describeBounds(finding.bounds)
                  : "no time estimate"}
            </span>
          )}
        </button>
      </Heading>
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

function FindingBody({ id, finding, report, captureId, isRefined = false }: Props): JSX.Element {
  const findingIndex = finding.analyzed_place ?? report.findings.indexOf(finding);
  const places = finding.places?.filter(({ source }) => source) ?? [];
  return (
    <div class="finding-content">
      <p class="summary">
        <Prose text={finding.summary} />
      </p>
      {finding.remedies.length > 0 && (
        <Part isRefined={isRefined} title="What to change">
          <Remedies remedies={finding.remedies} framework={report.framework} />
        </Part>
      )}
      {places.length > 0 && (
        <Part isRefined={isRefined} title="Your code">
          <Places places={places} />
        </Part>
      )}
      <div class="two-columns">
        {finding.how_to_verify && (
          <Part isRefined={isRefined} title="How to verify">
            <p>
              <Prose text={finding.how_to_verify} />
            </p>
          </Part>
        )}
        {finding.when_to_ignore && (
          <Part isRefined={isRefined} title="When to ignore">
            <p>
              <Prose text={finding.when_to_ignore} />
            </p>
          </Part>
        )}
      </div>
      {finding.evidence.length > 0 && (
        <Part isRefined={isRefined} title="Evidence">
          <EvidenceList items={finding.evidence} captureId={captureId} findingIndex={findingIndex} />
        </Part>
      )}
      {canWriteRemark() && (
        <Part isRefined={isRefined} title="Your note">
          <RemarkForm id={id} finding={finding} captureId={captureId} />
        </Part>
      )}
      {remarkHint() && (
        <Part isRefined={isRefined} title="Your note">
          <p class="muted">
            <Prose text={`Notes cannot be written at this address. ${remarkHint()}`} />
          </p>
        </Part>
      )}
      <FindingFooter id={id} finding={finding} captureId={captureId} findingIndex={findingIndex} />
    </div>
  );
}

interface FooterProps {
  id: string;
  finding: FindingInfo;
  captureId: string;
  findingIndex: number;
}

function FindingFooter({ id, finding, captureId, findingIndex }: FooterProps): JSX.Element {
  const target = profileTarget(selectedCapture.value);
  const [tool, toolLabel] = profileTool(finding.category);
  const scope = describeScope(finding.scope);
  const basis = finding.saving?.basis;
  // A timeline has a download link of its own.
  const hasTimeline = finding.evidence.some(({ kind }) => kind === "events" || kind === "span");
  return (
    <footer class="finding-foot">
      <span class="foot-facts">
        <code>{finding.rule_id}</code>
        {scope && <span>{scope}</span>}
        {basis && <span title={BASES[basis]}>{basis} saving</span>}
      </span>
      <span class="button-row">
        {finding.saving && !hasTimeline && !isExported && (
          <ExcerptLink href={excerptUrl(captureId, findingIndex)} name={finding.rule_id} />
        )}
        {target && (
          <a class="button" target="_parent" href={profileLink(BASE, readSearch(), target, tool)}>
            Profile tab: {toolLabel} <LinkIcon />
          </a>
        )}
        <CopyLink captureId={captureId} id={id} />
        <RuleLink ruleId={finding.rule_id} />
      </span>
    </footer>
  );
}

/** A part of a finding; its heading is one level below that of the finding. */
function Part({ isRefined, title, children }: { isRefined: boolean; title: string; children: ComponentChildren }): JSX.Element {
  const Heading = isRefined ? "h5" : "h4";
  return (
    <section class="part">
      <Heading>{title}</Heading>
      {children}
    </section>
  );
}
