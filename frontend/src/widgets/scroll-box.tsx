// A box that scrolls sideways, and whose edges show where there is more.
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  label: string;
  role: "group" | "region";
  children: ComponentChildren;
}

export function ScrollBox({ label, role, children }: Props): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const update = (): void => {
      const hidden = element.scrollWidth - element.clientWidth;
      element.parentElement?.classList.toggle("has-more-left", element.scrollLeft > 1);
      element.parentElement?.classList.toggle("has-more-right", element.scrollLeft < hidden - 1);
    };
    update();
    const observer = new ResizeObserver(update);
    observer.observe(element);
    for (const child of element.children) observer.observe(child);
    element.addEventListener("scroll", update, { passive: true });
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", update);
    };
  });
  return (
    <div class="scroll-frame">
      <div ref={box} class="table-scroll" role={role} aria-label={label} tabIndex={0}>
        {children}
      </div>
    </div>
  );
}
