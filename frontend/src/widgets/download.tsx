// A link that downloads what the server makes on request, once it is made.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { toApiError } from "../state/answers";
import { fetchMade } from "../state/api";

interface Props {
  href: string;
  /** The file's name, if the server gives it none. */
  name: string;
  class?: string;
  title?: string;
  children: ComponentChildren;
}

export function Download({ href, name, children, ...rest }: Props): JSX.Element {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const download = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (isBusy) return;
    setBusy(true);
    setProblem("");
    try {
      // The browser reads it again, by itself: it names the file, and shows the progress.
      await (await fetchMade(href)).body?.cancel();
      save(href, name);
    } catch (error) {
      const { message, hint } = toApiError(error);
      setProblem(`${message} ${hint}`);
    }
    setBusy(false);
  };
  return (
    <>
      <a {...rest} href={href} download={name} aria-busy={isBusy} onClick={(event) => void download(event)}>
        {children}
      </a>
      {problem && (
        <span class="muted" role="alert">
          {problem}
        </span>
      )}
    </>
  );
}

function save(href: string, name: string): void {
  const link = document.createElement("a");
  link.href = href;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
}
