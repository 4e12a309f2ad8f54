// Line icons, 16 × 16, in the color of the surrounding text. Screen readers skip them.
import type { JSX } from "preact";

function Icon({ path }: { path: string }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={path} />
    </svg>
  );
}

export const ChevronIcon = () => <Icon path="M6 3.5 10.5 8 6 12.5" />;
export const InfoIcon = () => (
  <Icon path="M8 14.2A6.2 6.2 0 1 0 8 1.8a6.2 6.2 0 0 0 0 12.4ZM8 7.4v3.6M8 5v.1" />
);
export const CheckIcon = () => <Icon path="m3 8.5 3.4 3.3L13 4.8" />;
export const WarningIcon = () => <Icon path="M8 2.2 14.4 13.4H1.6L8 2.2ZM8 6.6v3M8 11.5v.1" />;
export const CopyIcon = () => (
  <Icon path="M6 5.5h6.5a1 1 0 0 1 1 1V13a1 1 0 0 1-1 1H6a1 1 0 0 1-1-1V6.500a1 1 0 0 1 1-1ZM2.500 10.500V3a1 1 0 0 1 1-1H10" />
);
export const LinkIcon = () => <Icon path="M6.500 3H3v10h10V9.500M9 2.500h4.500V7M13.300 2.700 7.500 8.500" />;
export const DownloadIcon = () => <Icon path="M8 2.500v7.500M4.800 7 8 10.200 11.200 7M3 13.500h10" />;
export const MinusIcon = () => <Icon path="M3.500 8h9" />;
export const PlusIcon = () => <Icon path="M3.500 8h9M8 3.500v9" />;
export const LeftIcon = () => <Icon path="M12.500 8h-9M7.200 3.800 3 8l4.200 4.200" />;
export const RightIcon = () => <Icon path="M3.500 8h9M8.800 3.800 13 8l-4.200 4.200" />;
export const PinIcon = () => <Icon path="M5.500 2.500h5l-.7 4.200 2.200 2.300H4l2.200-2.300-.7-4.200ZM8 9v5" />;
export const CloseIcon = () => <Icon path="m3.800 3.800 8.400 8.400M12.200 3.800 3.800 12.200" />;
