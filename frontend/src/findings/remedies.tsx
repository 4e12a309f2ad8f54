// The remedies of a finding, by framework, code first.
import type { JSX } from "preact";
import { formatPlural } from "../format";
import type { Remedy } from "../report";
import { useFlag } from "../state/linked";
import { frameworkName } from "../text";
import { Code } from "../widgets/code";
import { ExternalLink, Prose } from "../widgets/prose";
import { Tabs } from "../widgets/tabs";

export function Remedies({ remedies, framework }: { remedies: Remedy[]; framework: string }): JSX.Element {
  const frameworks = [...new Set(remedies.map((remedy) => remedy.framework))];
  if (frameworks.length < 2) return <RemedyList remedies={remedies} />;
  return (
    <Tabs
      label="Framework"
      initial={frameworks.indexOf(framework)}
      tabs={frameworks.map((name) => ({
        name: name ? frameworkName(name) : "Any framework",
        content: <RemedyList remedies={remedies.filter((remedy) => remedy.framework === name)} />,
      }))}
    />
  );
}

function RemedyList({ remedies }: { remedies: Remedy[] }): JSX.Element {
  const [isWhole, setWhole] = useFlag("all");
  const hidden = isWhole ? 0 : remedies.length - 1;
  return (
    <>
      <ol class="remedies">
        {remedies.slice(0, remedies.length - hidden).map((remedy) => (
          <li key={remedy.text}>
            {remedy.snippet && <Code text={remedy.snippet} language={remedy.language} marksArguments />}
            <p>
              <Prose text={remedy.text} />{" "}
              {remedy.reference && <ExternalLink href={remedy.reference}>Documentation</ExternalLink>}
            </p>
          </li>
        ))}
      </ol>
      {hidden > 0 && (
        <button type="button" class="link-button" onClick={() => setWhole(true)}>
          {formatPlural(hidden, "other way", "other ways")}
        </button>
      )}
    </>
  );
}
