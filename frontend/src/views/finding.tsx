// One finding: a row that opens in place.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { BASE, excerptUrl } from "../api";
import { isExported } from "../exported";
import { formatDuration } from "../format";
import { readSearch } from "../host";
import { profileLink, profileTarget, profileTool } from "../profile";
import type { FindingInfo, Report, SavingInfo } from "../report";
import { openFindings, selectedCapture, toggleFinding } from "../state";
import { BASES, describeScope } from "../text";
import { Evidence } from "./evidence";
import { ExcerptLink } from "./excerpt-link";
import { ChevronIcon, LinkIcon } from "./icons";
import { PreviewBadge } from "./preview";
import { Prose } from "./prose";
import { Remedies } from "./remedies";
import { RulePageButton } from "./rule-page";
import { Saving } from "./saving";
import { Severity } from "./severity";

interface Props {
  id: string;
  finding: FindingInfo;
  report: Report;
  fullShare: number;
  isRefined?: boolean;
  /** The captures' id among the routes; a report names itself. */
  captureId: string;
}

export function Finding(props: Props): JSX.Element {
  const { id, finding, fullShare, isRefined = false } = props;
  const isOpen = openFindings.value.has(id);
  const row = useRef<HTMLDivElement>(null);
  useEffect(() => {
    // Opened by a link: brought into view, once.
    if (isOpen) row.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const Heading = isRefined ? "h4" : "h3";
  return (
    <div class={`finding${isRefined ? " finding-refined" : ""}${isOpen ? " is-open" : ""}`} ref={row}>
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
            <Prose text={finding.title} />
            {finding.is_preview && <> <PreviewBadge /></>}
          </span>
          <Severity severity={finding.severity} />
          {finding.saving ? (
            <Saving saving={finding.saving} fullShare={fullShare} />
          ) : (
            <span class="saving saving-none">no time estimate</span>
          )}
        </button>
      </Heading>
      <div id={`finding-${id}`} class="finding-body" hidden={!isOpen}>
        {isOpen && <FindingBody {...props} />}
      </div>
    </div>
  );
}

function FindingBody({ finding, report, captureId }: Props): JSX.Element {
  const place = report.findings.indexOf(finding);
  return (
    <div class="finding-content">
      <p class="summary">
        <Prose text={finding.summary} />
      </p>
      {finding.remedies.length > 0 && (
        <Part title="What to change">
          <Remedies remedies={finding.remedies} framework={report.framework} />
        </Part>
      )}
      {finding.evidence.length > 0 && (
        <Part title="Evidence">
          {finding.evidence.map((item, index) => (
            <Evidence key={index} item={item} captureId={captureId} place={place} />
          ))}
        </Part>
      )}
      <div class="two-columns">
        {finding.how_to_verify && (
          <Part title="How to verify">
            <p>
              <Prose text={finding.how_to_verify} />
            </p>
          </Part>
        )}
        {finding.when_to_ignore && (
          <Part title="When to ignore it">
            <p>
              <Prose text={finding.when_to_ignore} />
            </p>
          </Part>
        )}
      </div>
      <FindingFoot finding={finding} captureId={captureId} place={place} />
    </div>
  );
}

interface FootProps {
  finding: FindingInfo;
  captureId: string;
  place: number;
}

function FindingFoot({ finding, captureId, place }: FootProps): JSX.Element {
  const target = profileTarget(selectedCapture.value);
  const [tool, toolLabel] = profileTool(finding.category);
  const scope = describeScope(finding.scope);
  const basis = finding.saving?.basis;
  // A time line has the file of what it shows.
  const hasTimeline = finding.evidence.some(({ kind }) => kind === "events" || kind === "span");
  return (
    <footer class="finding-foot">
      <span class="foot-facts">
        <code>{finding.rule_id}</code>
        {scope && <span>{scope}</span>}
        {basis && <span title={BASES[basis]}>saving {basis}</span>}
        {finding.saving && finding.refines === null && <Marginal saving={finding.saving} />}
      </span>
      <span class="button-row">
        {finding.saving && !hasTimeline && !isExported && (
          <ExcerptLink href={excerptUrl(captureId, place)} ruleId={finding.rule_id} />
        )}
        {target && (
          <a class="button" target="_parent" href={profileLink(BASE, readSearch(), target, tool)}>
            Profile tab: {toolLabel} <LinkIcon />
          </a>
        )}
        <RulePageButton ruleId={finding.rule_id} />
      </span>
    </footer>
  );
}

/** What the change adds once those above it are made: less where they overlap, more where both
 *  hold the step up together. */
function Marginal({ saving }: { saving: SavingInfo }): JSX.Element | null {
  if (saving.marginal_ns === saving.expected_ns) return null;
  return <span>adds {formatDuration(saving.marginal_ns)} to the changes above</span>;
}

function Part({ title, children }: { title: string; children: ComponentChildren }): JSX.Element {
  return (
    <section class="part">
      <h5>{title}</h5>
      {children}
    </section>
  );
}
