// The remedies of a finding, by framework.
import type { JSX } from "preact";
import type { Remedy } from "../report";
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
  return (
    <ol class="remedies">
      {remedies.map((remedy) => (
        <li key={remedy.text}>
          <p>
            <Prose text={remedy.text} />{" "}
            {remedy.reference && <ExternalLink href={remedy.reference}>Documentation</ExternalLink>}
          </p>
          {remedy.snippet && <Code text={remedy.snippet} language={remedy.language} marksArguments />}
        </li>
      ))}
    </ol>
  );
}
