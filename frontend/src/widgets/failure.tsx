// An error: what went wrong, where, and what to do next.
import type { JSX } from "preact";
import type { ApiError } from "../state/answers";
import { WarningIcon } from "./icons";
import { Prose } from "./prose";

export function Failure({ error, onRetry }: { error: ApiError; onRetry(): void }): JSX.Element {
  return (
    <section class="card failure" role="alert">
      <WarningIcon />
      <div>
        <h1>
          <Prose text={error.message} />
        </h1>
        {error.where && (
          <p>
            <code>{error.where}</code>
          </p>
        )}
        {error.hint && (
          <p class="muted">
            <Prose text={error.hint} />
          </p>
        )}
        <button type="button" onClick={onRetry}>
          Try again
        </button>
      </div>
    </section>
  );
}
