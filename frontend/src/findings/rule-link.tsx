// A link to the page of a rule.
import type { JSX } from "preact";
import { ruleLink } from "../state/store";
import { PageLink } from "../widgets/page-link";

export const RuleLink = ({ ruleId }: { ruleId: string }): JSX.Element => (
  <PageLink class="button" to={ruleLink(ruleId)}>
    About this rule
  </PageLink>
);
